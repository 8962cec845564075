"""Asks the quickstart's question: a fact hidden in more than 4,000 tokens of text, streamed.

Usage: quickstart.py ENDPOINT EVAL_JSONL. Prints question, answer and time to first token; exit code 1 when the answer
is wrong. Standard library only, so that it runs on a fresh machine.
"""

import json
import sys
import time
import urllib.request


def pick(path):
    with open(path) as lines:
        for row in map(json.loads, lines):
            if row["kind"] == "single" and row["depth"] == "middle" and row["prompt_tokens"] >= 4000:
                return row
    sys.exit(f"{path}: no row of at least 4,000 tokens")


def ask(endpoint, messages):
    body = {"model": "needle", "messages": messages, "temperature": 0, "stream": True,
            "stream_options": {"include_usage": True}, "thinking": {"type": "disabled"}}
    request = urllib.request.Request(f"{endpoint}/v1/chat/completions", json.dumps(body).encode(),
                                     {"content-type": "application/json"})
    start, first, text, usage = time.monotonic(), None, "", None
    with urllib.request.urlopen(request, timeout=120) as answer:
        for line in answer:
            data = line.decode().strip().removeprefix("data: ")
            if not data or data == "[DONE]":
                continue
            event = json.loads(data)
            if "error" in event:
                sys.exit(f"the endpoint answered with an error: {event['error']['message']}")
            usage = event.get("usage") or usage
            for choice in event["choices"]:
                delta = choice["delta"].get("content")
                if delta:
                    first = first or time.monotonic() - start
                    text += delta
    return text, usage, first


def main():
    endpoint, path = sys.argv[1:]
    row = pick(path)
    content = row["messages"][-1]["content"]
    text, usage, first = ask(endpoint, row["messages"])
    print(f"text      {content[:90]} ...  ({usage['prompt_tokens']:,} tokens)")
    print(f"question  {content[content.rindex('.') + 1:].strip()}")
    print(f"answer    {text}   (right: {row['expected']})")
    print(f"time to first token  {first:.2f} s = {usage['prompt_tokens'] / first:,.0f} prompt tokens/s")
    sys.exit(0 if text == row["expected"] else 1)


main()
