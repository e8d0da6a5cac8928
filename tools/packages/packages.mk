# Packages of what `make install-tools` and `make install-dkms` install. Included by the top Makefile.
PACKAGES_OUT := $(or $(CARGO_TARGET_DIR),target)/packages
# Counts packages of one version, from 1.
REVISION := 1
PACKAGES_NEED := debhelper dh-dkms dpkg-dev fakeroot libhwloc-dev libudev-dev lintian pkg-config rpm
# Those who build packages for others say who they are.
MAINTAINER := The PPC authors <root@$(shell hostname -f 2> /dev/null || echo localhost)>
export VERSION REVISION MAINTAINER

##@ Packages
.PHONY: packages
packages: packages-deps tools ## Debian packages, rpms and a container image of what is installed, into target/packages
	@tools/packages/deb.sh $(PACKAGES_OUT)
	@tools/packages/rpm.sh $(PACKAGES_OUT)
	@tools/packages/oci.py $(PACKAGES_OUT)/ppc_$(VERSION)-$(REVISION)_*.deb $(PACKAGES_OUT)/ppc-$(VERSION).oci.tar
	@cd $(PACKAGES_OUT) && du -h --apparent-size -- *.deb *.rpm *.oci.tar

.PHONY: packages-deps
packages-deps:
	@sh tests/vm/deps.sh $(PACKAGES_NEED)

# Two boots of a guest with systemd, five minutes: outside of `make test`. A node of Debian 12 is made once.
.PHONY: packages-test
packages-test: packages ## install, upgrade and purge the packages in a guest in which DKMS builds the module; as root
	@sh tests/vm/deps.sh mmdebstrap runc
	@VERSION=$(VERSION).1 DEB_BUILD_OPTIONS=noautodbgsym tools/packages/deb.sh $(PACKAGES_OUT)/next
	@tests/packages/image.py $(PACKAGES_OUT)/ppc-$(VERSION).oci.tar
	@tests/packages/packages.py $(PACKAGES_OUT) $(PACKAGES_OUT)/next
