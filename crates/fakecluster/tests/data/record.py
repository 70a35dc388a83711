#!/usr/bin/env python3
"""Asks a real API server every request of a recording again and writes its answers into the recording.

    record.py https://127.0.0.1:6443 TOKEN recorded-1.34.json

The server must be fresh and without nodes, and the token an administrator's. A step with `settle` is followed by
a pause in which controllers do their work. `{start}` in a path is the version of the first answer's object.
"""

import json
import ssl
import sys
import time
import urllib.error
import urllib.request

server, token, path = sys.argv[1:]
context = ssl._create_unverified_context()


def ask(step, start):
    format = "application/merge-patch+json" if step["method"] == "PATCH" else "application/json"
    body = json.dumps(step["body"]).encode() if "body" in step else None
    headers = {"Authorization": f"Bearer {token}", "Content-Type": format, "Accept": "application/json"}
    url = server + step["path"].replace("{start}", start)
    request = urllib.request.Request(url, data=body, method=step["method"], headers=headers)
    try:
        with urllib.request.urlopen(request, context=context, timeout=20) as response:
            code, text = response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        code, text = error.code, error.read().decode()
    documents = [json.loads(line) for line in text.splitlines()]
    is_watch = "watch=1" in step["path"] and code == 200
    return code, documents if is_watch else (documents[0] if documents else None)


def without_managed_fields(value):
    if isinstance(value, dict):
        return {name: without_managed_fields(it) for name, it in value.items() if name != "managedFields"}
    return [without_managed_fields(it) for it in value] if isinstance(value, list) else value


with open(path) as file:
    steps = json.load(file)
start = ""
for step in steps:
    step["code"], answer = ask(step, start)
    step["answer"] = without_managed_fields(answer)
    start = start or answer["metadata"]["resourceVersion"]
    if step.get("settle"):
        time.sleep(1.5)
with open(path, "w") as file:
    lines = (json.dumps(step, ensure_ascii=False, separators=(",", ":")) for step in steps)
    file.write("[\n" + ",\n".join(lines) + "\n]\n")
