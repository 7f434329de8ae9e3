# An image with the program, its recipes and scripts.
#
#   docker build -t halflife .
#   docker run --rm -v "$PWD:/work" halflife generate --model runs/first --prompt "In the"
#
# For NVIDIA GPUs (run it with --gpus all --ipc=host):
#
#   docker build -t halflife-cuda --build-arg BASE=nvidia/cuda:13.0.1-devel-ubuntu24.04 \
#     --build-arg PRESET=cuda .
ARG BASE=debian:12
FROM ${BASE}
# cpu or cuda: a preset of CMakePresets.json, and the option of launch/setup.
ARG PRESET=cpu
WORKDIR /opt/halflife
COPY . .
# LibTorch stays in /opt/halflife/.venv, from where the program loads it.
RUN launch/setup --${PRESET} \
  && cmake --preset ${PRESET} -DBUILD_TESTING=OFF -DHALFLIFE_PYTHON=OFF \
  && cmake --build --preset ${PRESET} --target halflife \
  && cmake --install build/${PRESET} --prefix /usr/local \
  && rm -rf build /root/.cache /var/lib/apt/lists/*
# mpirun refuses to start as root without these.
ENV OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
WORKDIR /work
ENTRYPOINT ["halflife"]
