# mr2-probe in a container. CPU by default; the CUDA libraries come with torch's own wheels, so the same base does:
#
#   docker build -t mr2-probe .
#   docker build -t mr2-probe --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cu126 .
#   docker run --rm -v "$PWD":/data mr2-probe run --data /data/my-images          (with --gpus all for CUDA)

FROM python:3.12-slim AS build
WORKDIR /source
COPY pyproject.toml setup.py README.md LICENSE ./
COPY backbones backbones
COPY recipes recipes
COPY probe probe
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:3.12-slim
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
RUN pip install --no-cache-dir --index-url "$TORCH_INDEX" torch torchvision
COPY --from=build /wheels /wheels
RUN pip install --no-cache-dir /wheels/*.whl && rm -r /wheels
RUN useradd --create-home probe
USER probe
WORKDIR /data
ENV PROBE_CACHE=/home/probe/cache
ENTRYPOINT ["probe"]
CMD ["--help"]
