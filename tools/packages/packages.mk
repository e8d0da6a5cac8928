# Packages of what `make install-tools` and `make install-dkms` install. Included by the top Makefile.
PACKAGES_OUT := $(or $(CARGO_TARGET_DIR),target)/packages
# Counts packages of one version, from 1.
REVISION := 1
PACKAGES_NEED := debhelper dh-dkms dpkg-dev fakeroot libhwloc-dev libudev-dev lintian pkg-config rpm
# Those who build packages for others say who they are.
MAINTAINER := The PPC authors <root@$(shell hostname -f 2> /dev/null || echo localhost)>
export REVISION MAINTAINER

##@ Packages
.PHONY: packages
packages: packages-deps tools ## Debian packages of what is installed, into target/packages
	@tools/packages/deb.sh $(PACKAGES_OUT)
	@cd $(PACKAGES_OUT) && du -h --apparent-size -- *.deb

.PHONY: packages-deps
packages-deps:
	@sh tests/vm/deps.sh $(PACKAGES_NEED)
