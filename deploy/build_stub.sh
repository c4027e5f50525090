#!/usr/bin/env bash
# For `make install-numpy2`: the process that runs Python models in the embedded Triton 2.51, so that it reads NumPy 2 arrays.
# Arguments: the Python that it is for, and the file to write.
#
# It is upstream's own of that version (release 24.10, for CPUs) but for pybind11: 2.12 is the first that knows NumPy 2, and
# upstream's since 24.11 (python_backend, pull request 384). Boost is the system's: from 1.74 to 1.83 it lays out shared
# memory as upstream's 1.79 does. Nothing of these sources is part of onestream: python_backend, core, common, backend and
# pybind11 have the BSD 3-clause licence, dlpack has Apache 2.0.
set -euo pipefail
python=$1
stub=$2

sources=$(mktemp -d)
trap 'rm -rf "$sources"' EXIT
while read -r repository commit; do
    folder=$sources/${repository##*/}
    git init --quiet "$folder"
    git -C "$folder" fetch --quiet --depth 1 "https://github.com/$repository" "$commit"
    git -C "$folder" checkout --quiet FETCH_HEAD
done << 'END'
triton-inference-server/python_backend 01d0ad82f9f5d63978456e26c8a2a9746a9d68d8
triton-inference-server/core bfec7c61dc0939433f64f14e89b1973073eac8ba
triton-inference-server/common 578491fc3944f77d16a6a38e3d7691c485c47ba0
triton-inference-server/backend ac03a5d97403dec841ad46d0439e93db12c9268f
pybind/pybind11 3e9dfa2866941655c56877882565e7577de6fc7b
dmlc/dlpack 365b823cedb281cd0240ca601aba9b78771f91a3
END

read -r headers libraries version <<< "$("$python" -c 'import sysconfig
print(sysconfig.get_path("include"), *map(sysconfig.get_config_var, ("LIBDIR", "LDVERSION")))')"
cd "$sources/python_backend/src"
# The sources of the target triton-python-backend-stub in its CMakeLists.txt, and its options.
g++ -std=c++17 -O3 -DNDEBUG -DTRITON_PB_STUB -fvisibility=hidden -s -o "$sources/stub" \
    {correlation_id,gpu_buffers,infer_request,infer_response,infer_trace,ipc_message,metric,metric_family}.cc \
    {model_loader,pb_cancel,pb_error,pb_log,pb_map,pb_memory,pb_response_iterator,pb_string,pb_stub,pb_stub_utils}.cc \
    {pb_tensor,pb_utils,response_sender,scoped_defer,shm_manager}.cc \
    -I"$sources"/{core,common,backend,pybind11,dlpack}/include -I"$headers" \
    -L"$libraries" "-lpython$version" -pthread
install -D "$sources/stub" "$stub"
