# An image for jobs: `make image` builds it.
FROM pytorch/pytorch:2.11.0-cuda13.0-cudnn9-devel
COPY . /src/zerowiz
RUN pip install --no-cache-dir "/src/zerowiz[train]"
WORKDIR /work
ENTRYPOINT ["zerowiz"]
