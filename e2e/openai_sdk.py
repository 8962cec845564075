"""What a program with the openai SDK does, unchanged. Usage: openai_sdk.py BASE_URL. Raises at the first surprise."""

import sys

import openai

client = openai.OpenAI(base_url=sys.argv[1], api_key="unused", max_retries=0)
OFF = {"thinking": {"type": "disabled"}}
TEXT = "The code for harbor is 4821. The river was cold and green. A farmer slept near the garden. "
ASK = [{"role": "user", "content": TEXT + "What is the code for harbor?"}]
TELL = [{"role": "user", "content": TEXT + "Tell me the code for harbor."}]


def check(what, found, expected):
    assert found == expected, f"{what}: {found!r}, expected {expected!r}"
    print(f"{what}: {found!r}")


def chat():
    answer = client.chat.completions.create(model="needle", messages=ASK, temperature=0, extra_body=OFF)
    check("content", answer.choices[0].message.content, "4821")
    check("finish_reason", answer.choices[0].finish_reason, "stop")
    usage = answer.usage
    check("usage adds up", usage.total_tokens, usage.prompt_tokens + usage.completion_tokens)
    return usage


def stream(whole):
    events = list(client.chat.completions.create(
        model="needle", messages=ASK, temperature=0, stream=True, stream_options={"include_usage": True},
        extra_body=OFF))
    text = "".join(c.delta.content or "" for e in events for c in e.choices)
    check("streamed content", text, "4821")
    check("events with usage", sum(e.usage is not None for e in events), 1)
    check("the usage event has no choice", events[-1].choices, [])
    check("streamed usage", events[-1].usage.model_dump(), whole.model_dump())
    check("one finish", [c.finish_reason for e in events for c in e.choices if c.finish_reason], ["stop"])
    check("no usage unasked", [e.usage for e in client.chat.completions.create(
        model="needle", messages=ASK, temperature=0, stream=True, extra_body=OFF) if e.usage], [])


def stop():
    answer = client.chat.completions.create(
        model="needle", messages=TELL, temperature=0, stop=[" is"], extra_body=OFF)
    check("stopped before", answer.choices[0].message.content, "The code for harbor")
    check("stop reason", answer.choices[0].finish_reason, "stop")
    cut = client.chat.completions.create(
        model="needle", messages=TELL, temperature=0, max_tokens=2, extra_body=OFF)
    check("length", (cut.choices[0].finish_reason, cut.usage.completion_tokens), ("length", 2))


def thinking():
    answer = client.chat.completions.create(
        model="needle", messages=ASK, temperature=0, extra_body={"thinking": {"type": "enabled"}})
    check("content after thinking", answer.choices[0].message.content, "4821")
    check("reasoning", answer.choices[0].message.reasoning_content, "I found the code for harbor.")


def refusals():
    for what, kind, call in (
        ("unknown model", openai.NotFoundError, {"model": "gpt-4"}),
        ("negative temperature", openai.BadRequestError, {"temperature": -1}),
    ):
        try:
            client.chat.completions.create(**({"model": "needle", "messages": ASK} | call))
        except kind as error:
            check(what, error.status_code, {"unknown model": 404}.get(what, 400))
        else:
            raise AssertionError(f"{what} was accepted")


def logprobs():
    answer = client.chat.completions.create(
        model="needle", messages=ASK, temperature=0, logprobs=True, top_logprobs=3, extra_body=OFF)
    content = answer.choices[0].logprobs.content
    check("a logprob for every token", len(content), answer.usage.completion_tokens)
    check("three alternatives each", {len(entry.top_logprobs) for entry in content}, {3})


check("models", [m.id for m in client.models.list()], ["needle"])
stream(chat())
stop()
thinking()
logprobs()
refusals()
