"""Run checks one after the other against one server; each ends by its deadline, none raises."""

from __future__ import annotations

import asyncio
import ipaddress
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

import httpx

from sparkloom.pair import Answer
from sparkloom.probe import metrics, rules
from sparkloom.probe.checks import Check
from sparkloom.probe.client import Client, Refused
from sparkloom.probe.results import Result, Verdict

Outcome = tuple[Verdict, str, str]  # level, expected, seen
OK = Verdict.OK


@dataclass(frozen=True)
class Target:
    """The server to probe. `words` replaces the length of the long-prompt checks."""

    url: str
    key: str | None = None
    model: str | None = None
    words: int | None = None


async def probe(
    target: Target, checks: Sequence[Check], *, progress: Callable[[Result], None] | None = None
) -> list[Result]:
    """Run the checks in order; a server that does not answer at all fails the first and skips the rest."""
    client = Client(target.url, key=target.key, model=target.model)
    results: list[Result] = []
    gone = ""
    try:
        for check in checks:
            if gone:
                result = Result(check.name, Verdict.SKIP, "a server", gone)
            else:
                result, unreachable = await _run(client, target, check)
                gone = "not asked: the server does not answer" if unreachable else ""
            results.append(result)
            if progress:
                progress(result)
    finally:
        await client.close()
    return results


async def _run(client: Client, target: Target, check: Check) -> tuple[Result, bool]:
    begin = time.monotonic()
    unreachable = False
    outcome: Outcome
    try:
        async with asyncio.timeout(check.deadline_s):
            for _ in range(check.attempts):
                outcome = await _KINDS[check.kind](client, target, check)
                if outcome[0] is not Verdict.FAIL:
                    break
    except TimeoutError:
        outcome = (Verdict.FAIL, f"an answer within {check.deadline_s:g} s", "none")
        unreachable = check.kind == "health"
    except Refused as error:
        outcome = (Verdict.FAIL, "an answer", str(error))
    except httpx.HTTPError as error:
        outcome = (Verdict.FAIL, "a connection", f"{type(error).__name__}: {error}".rstrip(": "))
        unreachable = isinstance(error, httpx.ConnectError | httpx.ConnectTimeout) or check.kind == "health"
    except Exception as error:  # a reply of a shape that nobody foresaw must not end the probe
        outcome = (Verdict.FAIL, "a well-formed reply", f"{type(error).__name__}: {error}")
    level, expected, seen = outcome
    mend = check.mend if level in (Verdict.FAIL, Verdict.WARN) else ""
    return Result(check.name, level, expected, seen, round(time.monotonic() - begin, 3), mend), unreachable


async def _health(client: Client, _: Target, check: Check) -> Outcome:
    status = await client.health()
    return (OK if status == 200 else Verdict.FAIL), "status 200", f"status {status}"


async def _chat(client: Client, _: Target, check: Check) -> Outcome:
    reply = await client.chat(check.request)
    return _judged(check, reply)


def _judged(check: Check, reply: rules.Reply, how: str = "") -> Outcome:
    if complaint := rules.judge(check.rule, reply):
        return Verdict.FAIL, complaint[0], complaint[1] + how
    seen = " ".join((reply.content or str(reply.tools)).split())
    return OK, "the rule to hold", seen[:80]


async def _stream_equal(client: Client, _: Target, check: Check) -> Outcome:
    whole = await client.chat(check.request)
    streamed = await client.stream(check.request)
    if complaint := rules.equal(check.rule["equal"], whole, streamed):
        return Verdict.FAIL, *complaint
    if not whole.content.strip():
        return Verdict.FAIL, "some text", "an empty answer, whole and streamed"
    return OK, "stream and whole reply to be equal", f"{len(whole.content)} equal characters"


async def _tool(client: Client, _: Target, check: Check) -> Outcome:
    outcome = _judged(check, await client.chat(check.request), " (whole reply)")
    if outcome[0] is Verdict.FAIL:
        return outcome
    return _judged(check, await client.stream(check.request), " (streamed)")


def long_prompt(words: int) -> str:
    """A prompt of about `words` words with one sentence to find in its first third."""
    line = "The harbour log of day {} tells of calm water, two boats and a heron on the quay. "
    count = max(3, words // 16)
    lines = [line.format(day) for day in range(count)]
    lines.insert(count // 3, "Remember that the code word is lantern. ")
    return "".join(lines) + "\nWhat is the code word in the log? Answer with the code word only."


async def _long(client: Client, target: Target, check: Check) -> Outcome:
    message = {"role": "user", "content": long_prompt(target.words or check.words)}
    reply = await client.chat({"messages": [message], **check.request})
    level, expected, seen = _judged(check, reply)
    return level, expected, f"{seen} ({reply.prompt_tokens} prompt tokens)"


async def _acceptance(client: Client, _: Target, check: Check) -> Outcome:
    before = await client.engine()
    least = int(check.rule["min_drafts"])
    for _round in range(6):
        await client.chat(check.request)
        after = await client.engine()
        found = metrics.acceptance(before, after, min_drafts=least)
        if after.drafts == 0 and after.draft_tokens == 0:
            return Verdict.SKIP, "drafts", "the server drafts nothing"
        if found.health is not metrics.Health.FEW:
            break
    expected = f"more than 0 and not all of at least {least} drafts accepted"
    level = {
        metrics.Health.HEALTHY: OK,
        metrics.Health.FEW: Verdict.WARN,
    }.get(found.health, Verdict.FAIL)
    return level, expected, f"{found.health}: {found}"


async def _abort(client: Client, _: Target, check: Check) -> Outcome:
    idle = (await client.engine()).running
    await client.stream(check.request, leave_after=2)
    begin = time.monotonic()
    limit = float(check.rule["idle_within_s"])
    while True:
        running = (await client.engine()).running
        took = time.monotonic() - begin
        if running <= idle:
            return OK, f"idle within {limit:g} s", f"idle after {took:.1f} s"
        if took > limit:
            return (
                Verdict.FAIL,
                f"no running request {limit:g} s after the client left",
                f"{running} running",
            )
        await asyncio.sleep(0.1)


async def _auth(client: Client, target: Target, check: Check) -> Outcome:
    """Which routes answer without a key. 404 and 405 mean that a route does not exist here."""
    answered: dict[str, int] = {}
    for route in [*check.rule["closed"], *check.rule["gateway"]]:
        method, path = route.split()
        body: dict[str, object] = {
            "model": await client.served_model(),
            "messages": [{"role": "user", "content": "1"}],
        }
        body |= {"max_tokens": 1, "prompt": "1"}
        send = body if method == "POST" else None
        response = await client.open.request(method, client.base + path, json=send)
        answered[route] = response.status_code
    exposed = [r for r, status in answered.items() if status not in (401, 403, 404, 405)]
    generating = [r for r in exposed if r in check.rule["closed"] or "/invocations" in r]
    expected = "every generating route to ask for the key"
    if target.key is None:
        level = Verdict.WARN if _loopback(target.url) else Verdict.FAIL
        return level, expected, "no key is in use: everybody who reaches the port may generate"
    if [r for r in exposed if r in check.rule["closed"]]:
        return Verdict.FAIL, expected, "open without a key: " + ", ".join(generating)
    if exposed:
        level = Verdict.WARN if _loopback(target.url) or not generating else Verdict.FAIL
        return level, expected, "open without a key: " + ", ".join(exposed)
    return OK, expected, "all closed"


def _loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


_KINDS = {
    "health": _health,
    "chat": _chat,
    "stream_equal": _stream_equal,
    "tool": _tool,
    "long": _long,
    "acceptance": _acceptance,
    "abort": _abort,
    "auth": _auth,
}


async def canary(target: Target, check: Check, deadline_s: float) -> tuple[Answer, str]:
    """The tiny checked generation of an idle server: right, wrong, or none."""
    client = Client(target.url, key=target.key, model=target.model)
    try:
        async with asyncio.timeout(deadline_s):
            reply = await client.chat(check.request)
    except TimeoutError:
        return Answer.NONE, f"a tiny generation got no answer in {deadline_s:g} s"
    except (Refused, httpx.HTTPError) as error:
        return Answer.NONE, f"a tiny generation failed: {error or type(error).__name__}"
    finally:
        await client.close()
    if complaint := rules.judge(check.rule, reply):
        if reply.finish == "length" and not rules.collapse(reply.content):
            return Answer.NONE, "a tiny generation was cut by its token limit before it answered"
        return Answer.WRONG, f"a tiny generation was wrong: expected {complaint[0]}, saw {complaint[1]}"
    return Answer.RIGHT, reply.content.strip()[:80]
