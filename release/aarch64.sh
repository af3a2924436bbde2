#!/bin/sh
# Fetches Python 3.11 for aarch64 from Debian, and what tpy needs there from the package index, into a folder: qemu runs it there.
# Use: aarch64.sh FOLDER CONSTRAINTS PYTHON REQUIREMENT...
set -eu
folder=$1 constraints=$2 python=$3
shift 3
command -v qemu-aarch64-static > /dev/null || apt-get install -y -qq qemu-user-static > /dev/null
dpkg --print-foreign-architectures | grep -qx arm64 || dpkg --add-architecture arm64
apt-get update -qq
mkdir -p "$folder/debs" "$folder/root"
for name in python3.11-minimal libpython3.11-minimal libpython3.11-stdlib libc6 libgcc-s1 libstdc++6 zlib1g libexpat1 libssl3 libffi8 \
    libbz2-1.0 liblzma5 libsqlite3-0 libuuid1 libcrypt1; do
    (cd "$folder/debs" && apt-get download -qq "$name:arm64" 2> /dev/null)
done
for each in "$folder"/debs/*.deb; do dpkg -x "$each" "$folder/root"; done
platforms=$(for glibc in 17 24 26 27 28; do printf -- '--platform manylinux_2_%s_aarch64 ' $glibc; done)
install() {
    # shellcheck disable=SC2086 # several words
    "$python" -m pip install -q --disable-pip-version-check --target "$folder/site" $platforms --platform manylinux2014_aarch64 \
        --python-version 3.11 --only-binary=:all: "$@" 2> /dev/null
}
install -c "$constraints" flatbuffers packaging "$@"
install --no-deps onnxruntime==1.24.1 # newer ones end with a segmentation fault in qemu 7.2, on import
