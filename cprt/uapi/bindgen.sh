#!/usr/bin/env bash
# Writes src/bindings.rs from the module's header; with --check, says whether it is what it would write.
# The output is committed, so that building does not need bindgen. Needs: bindgen, libclang1.
set -euo pipefail
cd "$(dirname "$0")"

header=../../kmod/include/uapi/linux/rfs.h
output=src/bindings.rs
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT

# bindgen does not evaluate function-like macros such as _IOWR: clang does, in an enum, whose value
# then becomes a constant under the macro's name.
{
	printf '#include "%s"\n' "$(realpath "$header")"
	sed -n 's/^#define \(RFS_IOC_[A-Z_]*\)[[:space:]]*_IO[WR]*(.*/\1/p' "$header" |
		while read -r ioc; do
			printf 'enum { value_of_%s = %s };\n#undef %s\n' "$ioc" "$ioc" "$ioc"
			printf 'static const __u32 %s = value_of_%s;\n' "$ioc" "$ioc"
		done
} >"$tmp/wrapper.h"

# Comments stay behind: rewording the header must not change this file.
bindgen "$tmp/wrapper.h" \
	--allowlist-type 'rfs_.*' --allowlist-var '_*RFS_.*' \
	--no-doc-comments --with-derive-default --disable-header-comment \
	--raw-line '// SPDX-License-Identifier: (GPL-2.0 WITH Linux-syscall-note) OR MIT' \
	--raw-line '// Generated from kmod/include/uapi/linux/rfs.h by cprt/uapi/bindgen.sh; edit those, not this.' \
	--no-rustfmt-bindings --output "$tmp/bindings.rs"
rustfmt --edition 2024 "$tmp/bindings.rs"

if [[ ${1-} == --check ]]; then
	diff -u "$output" "$tmp/bindings.rs" || {
		echo "cprt/uapi/$output is not what the header says: run cprt/uapi/bindgen.sh" >&2
		exit 1
	}
else
	cp "$tmp/bindings.rs" "$output"
fi
