# mr2-probe in a container. CPU by default; torch's CUDA wheels bring the CUDA libraries, so the same base does:
#
#   docker build -t mr2-probe .
#   docker build -t mr2-probe --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cu126 .
#   docker build -t mr2-probe --build-arg BASE=... .      another base with Python 3.11 to 3.13 and its venv module
#   docker run --rm -v "$PWD":/data mr2-probe run --data /data/my-images          (with --gpus all for CUDA)

ARG BASE=python:3.12-slim

FROM python:3.12-slim AS build
WORKDIR /source
COPY pyproject.toml setup.py README.md LICENSE ./
COPY backbones backbones
COPY recipes recipes
COPY probe probe
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM ${BASE}
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
# What the base has stays in use (a torch of its own is kept), and a Python managed by the system is left alone.
RUN python3 -m venv --system-site-packages /opt/probe
ENV PATH=/opt/probe/bin:$PATH
RUN pip install --no-cache-dir --index-url "$TORCH_INDEX" torch torchvision
COPY --from=build /wheels /wheels
RUN pip install --no-cache-dir /wheels/*.whl && rm -r /wheels
RUN useradd --create-home probe && install -d -o probe /data
USER probe
WORKDIR /data
ENV PROBE_CACHE=/home/probe/cache
ENTRYPOINT ["probe"]
CMD ["--help"]
