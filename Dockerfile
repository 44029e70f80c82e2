# The bridge, its queue service and the command, without compilers or caches, as a user of its own.
FROM python:3.13-slim

WORKDIR /srv/queuebell
COPY requirements.lock .
RUN pip install --no-cache-dir --require-hashes -r requirements.lock
COPY pyproject.toml README.md ./
COPY bridge bridge
COPY listeners listeners
COPY examples examples
RUN pip install --no-cache-dir --no-deps --no-build-isolation . \
    && useradd --system --uid 10470 --home-dir /srv/queuebell queuebell \
    && install -d -o queuebell -g queuebell /data

USER queuebell
VOLUME /data
EXPOSE 8470
ENTRYPOINT ["queuebell"]
CMD ["serve", "--data", "/data"]
