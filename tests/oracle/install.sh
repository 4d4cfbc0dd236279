#!/bin/sh
# Puts another engine into a folder: node-llama-cpp with its prebuilt llama.cpp, and from the llama.cpp it was made of
# the vocabularies with their test vectors. Needs npm, node, git and the network.
#
#     sh tests/oracle/install.sh FOLDER
set -e
version=3.21.1
mkdir -p "$1"
cd "$1"
echo '{"private": true}' >package.json
npm install --omit=optional --ignore-scripts --no-audit --no-fund \
    node-llama-cpp@$version @node-llama-cpp/linux-x64@$version
git clone --quiet node_modules/node-llama-cpp/llama/gitRelease.bundle llama.cpp
