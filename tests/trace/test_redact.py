"""Secrets leave, everything else stays."""

import json
import random
import string
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from secret_samples import CLEAN, SECRETS
from spans import span, trace

import proctor
from proctor.errors import ProctorError
from proctor.trace import Event, Message, SpanKind, ToolCall, Trace
from proctor.trace.load import load_traces
from proctor.trace.redact import Redactor, default_redactor
from proctor.trace.secret_patterns import secret_kind


@pytest.fixture
def redactor() -> Redactor:
    return Redactor(environ={})


@pytest.mark.parametrize(("kind", "before", "secret", "after"), SECRETS)
def test_a_secret_leaves_and_the_rest_stays(
    kind: str, before: str, secret: str, after: str, redactor: Redactor
) -> None:
    """R-T9: each known kind of secret is replaced exactly, with its kind."""
    assert redactor.text(before + secret + after) == f"{before}[redacted:{kind}]{after}"


@pytest.mark.parametrize("text", CLEAN)
def test_ordinary_text_stays_as_it_is(text: str, redactor: Redactor) -> None:
    """R-T9: prose, code, ids, hashes, counts and images are not mistaken for secrets."""
    assert redactor.text(text) is text


def test_an_aws_secret_beside_its_key_id_goes_as_well(redactor: Redactor) -> None:
    """R-T9: 40 characters mean nothing alone, but they do beside an access key id."""
    secret = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
    assert redactor.text(f"hash {secret}") == f"hash {secret}"
    text = redactor.text(f"AKIAIOSFODNN7EXAMPLE {secret}")
    assert text == "[redacted:aws_key] [redacted:aws_secret]"


def test_names_say_what_holds_a_secret(redactor: Redactor) -> None:
    """R-T9: values under secret names are redacted at any depth; counts and schemas stay."""
    given = {
        "user": "bob",
        "Password": "x",
        "pin": 1234,
        "db": {"DB_PASSWORD": 12345, "port": 5432},
        "headers": [{"Authorization": "Bearer x", "X-Api-Key": "y", "Accept": "*/*"}],
        "api_keys": ["a", "b"],
        "max_tokens": 200,
        "access_token": None,
        "schema": {"password": {"type": "string", "description": "The password"}},
        "as_text": '{"client_secret": "abc", "n": 1}',
    }
    assert redactor.value(given) == {
        "user": "bob",
        "Password": "[redacted:password]",
        "pin": 1234,
        "db": {"DB_PASSWORD": "[redacted:password]", "port": 5432},
        "headers": [
            {
                "Authorization": "Bearer [redacted:authorization]",
                "X-Api-Key": "[redacted:api_key]",
                "Accept": "*/*",
            }
        ],
        "api_keys": ["[redacted:api_key]", "[redacted:api_key]"],
        "max_tokens": 200,
        "access_token": None,
        "schema": {"password": {"type": "string", "description": "The password"}},
        "as_text": '{"client_secret": "[redacted:secret]", "n": 1}',
    }


def test_keys_that_are_secrets_go_without_swallowing_others(redactor: Redactor) -> None:
    """R-T9: mapping keys are text too; two of them stay two."""
    one, two = "ghp_" + "a1B2c3" * 6, "ghp_" + "z9Y8x7" * 6
    assert redactor.value({one: 1, two: 2}) == {
        "[redacted:github_token]": 1,
        "[redacted:github_token] #2": 2,
    }


def test_every_part_of_a_trace_is_searched(redactor: Redactor) -> None:
    """R-T9: no text field of a span or trace keeps a secret; the original is not touched."""
    secret = "sk-" + "aB3dE" * 9
    hostile = span(
        "s",
        name=f"call {secret}",
        kind=SpanKind.TOOL,
        attributes={"a": {"b": [secret]}},
        events=(Event(secret, 0, {"x": secret}),),
        tool_input=secret,
        tool_output=(secret,),
        error_message=secret,
        input_messages=(Message("user", secret, (ToolCall("t", {"k": secret}),)),),
        output=[secret],
    )
    of = trace(hostile, query=secret, response=secret, metadata={"m": secret})
    clean = redactor.trace(of)
    assert secret not in repr(clean)
    assert repr(clean).count("[redacted:openai_key]") == repr(of).count(secret)
    assert hostile.tool_input == secret
    assert redactor.trace(clean) is clean, "nothing left to do, nothing copied"


def test_ids_with_secrets_change_and_still_hold_the_tree_together(redactor: Redactor) -> None:
    """R-T9: no field is exempt; children still find their parents, and ids stay distinct."""
    one, two = "sk-" + "aB3dE" * 9, "sk-" + "Zy8xW" * 9
    clean = redactor.trace(trace(span(one), span(two), span("c", one, start=1)))
    assert one not in repr(clean)
    assert len({each.span_id for each in clean.spans}) == 3
    assert clean.spans[2].parent_id == clean.spans[0].span_id
    assert redactor.trace(clean) is clean


def test_values_of_secret_environment_variables_go_wherever_they_stand() -> None:
    """R-T9: this machine's own secrets are known by value, also inside JSON text."""
    environ = {
        "SHOP_API_KEY": 'we"ird-valu3',
        "HOME": "/home/someone-long",
        "DB_PASSWORD": "short",
        "GOOGLE_APPLICATION_CREDENTIALS": "/etc/google/file.json",
    }
    redactor = Redactor(environ=environ)
    assert redactor.text('got we"ird-valu3.') == "got [redacted:environment]."
    assert redactor.text(json.dumps({"x": 'we"ird-valu3'})) == '{"x": "[redacted:environment]"}'
    for text in ("/home/someone-long", "a short word", "/etc/google/file.json"):
        assert redactor.text(text) == text


def test_configured_patterns_are_redacted_under_their_name() -> None:
    """R-T9: a project adds its own kinds."""
    redactor = Redactor({"employee": r"EMP-\d+"}, environ={})
    once = redactor.text("EMP-17 met EMP-18, password=EMP-19")
    assert once == "[redacted:employee] met [redacted:employee], password=[redacted:password]"
    assert redactor.text(once) == once
    # A pattern that would match our own marks leaves them alone.
    assert Redactor({"word": "[a-z]{5,}"}, environ={}).text("pwd=abc hello") == (
        "pwd=[redacted:password] [redacted:word]"
    )


@pytest.mark.parametrize(
    ("name", "pattern", "message"),
    [
        ("x", "(", "not a regular expression"),
        ("x", "a*", "matches the empty text"),
        ("a b", "c", "letters, digits"),
    ],
)
def test_a_bad_pattern_is_named(name: str, pattern: str, message: str) -> None:
    """R-T9: an invalid pattern is an error at once, with its name."""
    with pytest.raises(ProctorError, match=message) as caught:
        Redactor({name: pattern}, environ={})
    assert repr(name) in str(caught.value)


pieces = st.sampled_from(
    [before for _, before, _, _ in SECRETS]
    + [secret for _, _, secret, _ in SECRETS]
    + ["password", "=", ": ", '"', "\\", "'", "@", "://", "sk-", "\n", " ", "[redacted:x]", "é"]
)


@given(st.lists(pieces | st.text(max_size=3), max_size=12).map("".join))
@example("pcsk_" + "a1B2" * 8 + "://host/?appid=x1")  # the kind of the mark is a secret name
@example("MTk4NjIyNDgzNDcxOTI1MjQ4.5pHNBd.5pHNBdS418FtX99XtF814SdBNHp" * 2)  # a word of two tokens
def test_redacting_twice_changes_nothing(text: str) -> None:
    """R-T9: redaction is idempotent, on any mixture of secrets and their surroundings."""
    redactor = Redactor(environ={})
    once = redactor.text(text)
    assert redactor.text(once) == once


json_values = st.recursive(
    st.none() | st.integers() | st.text(max_size=8) | pieces,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["password", "x", "api_key", "token", "cookie"]), inner, max_size=3
        )
    ),
    max_leaves=8,
)


@given(json_values)
def test_structure_survives_also_inside_json_text(value: Any) -> None:
    """R-T9: redacting JSON text leaves JSON of the same shape."""
    redactor = Redactor(environ={})
    text = json.dumps(json.dumps(value))
    assert shape(json.loads(json.loads(redactor.text(text)))) == shape(value)
    assert redactor.value(redactor.value(value)) == redactor.value(value)


def shape(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: shape(item) for key, item in value.items()}
    return [shape(item) for item in value] if isinstance(value, list) else "leaf"


HOSTILE = {
    "names": "password=",
    "open quotes": 'password="',
    "escaped quotes": 'password=\\"a\\\\\\"',
    "growing": "sk-",
    "jwt": "eyJ",
    "jwt dots": "eyJaaaaaaaaaaaa.",
    "urls": "://a:",
    "urls2": "://:::::",
    "keys": "-----BEGIN RSA PRIVATE KEY-----",
    "bearer": "bearer ",
    "basic": "basic aaaaaa",
    "spaces": "token          ",
    "backslashes": "\\",
    "underscores": "ghp_",
    "name": "a_",
    "cookie": "cookie: ",
    "aws": "AKIAIOSFODNN7EXAMPLE/",
    "curl": "curl -u a:",
    "options": "--password ",
    "netrc": "machine a login b ",
    "hashes": "$6$aaaaaaaaa",
    "webhooks": "hooks.slack.com/services/",
    "dotted": "SG.aaaaaaaaaaaaaaaa.",
    "resend": "re_aaaaaa_",
    "userinfo": "://aaaaaaaaaaaaaaaa1:",
    "docker": '"auths auth": "',
}


@pytest.mark.parametrize("piece", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_text_takes_linear_time(piece: str, redactor: Redactor) -> None:
    """R-T9: eight times the text takes about eight times as long, not sixty-four times."""

    def seconds(size: int) -> float:
        text = (piece * (size // len(piece) + 1))[:size] + "password"
        started = time.process_time()
        redactor.text(text)
        return time.process_time() - started

    seconds(10_000)
    small = min(seconds(62_500 + i) for i in range(3))
    # The second only if something else had the processor during the first.
    assert any(seconds(500_000 + i) < 24 * small + 0.025 for i in range(2))


def test_random_base64_stays(redactor: Redactor) -> None:
    """R-T9: a megabyte of image data is not mistaken for keys."""
    chance = random.Random(7)
    letters = string.ascii_letters + string.digits + "+/"
    image = "data:image/png;base64," + "".join(chance.choices(letters, k=1_000_000))
    assert redactor.text(image) == image


def test_too_deep_structures_are_redacted_as_text(redactor: Redactor) -> None:
    """R-T9: depth neither hides a secret nor exhausts the stack."""
    value: Any = {"api_key": "abc123"}
    for _ in range(300):
        value = [value]
    assert "abc123" not in json.dumps(redactor.value(value))


def test_real_traces_hold_hardly_anything_to_redact(shared: Path) -> None:
    """R-T9: on real agent traces nothing but credentials is touched."""
    redactor = Redactor(environ={})
    found = load_traces(sorted((shared / "trail").rglob("*.json"))[:40])
    touched = [one for one in found if redactor.trace(one) is not one]
    assert len(found) > 20
    assert len(touched) <= len(found) // 20


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("OPENAI_API_KEY", "api_key"),
        ("openaiApiKey", "api_key"),
        ("x-api-key", "api_key"),
        ("AWS_SECRET_ACCESS_KEY", "api_key"),
        ("db.password", "password"),
        ("client-secret", "secret"),
        ("HF_TOKEN", "token"),
        ("tokens", None),
        ("gen_ai.usage.input_tokens", None),
        ("password_policy", None),
        ("secretary", None),
        ("monkey", None),
        ("public_key", None),
    ],
)
def test_names_are_judged_by_how_they_end(name: str, kind: str | None) -> None:
    """R-T9: one rule for mapping keys, environment variables and names in text."""
    assert secret_kind(name) == kind


def test_the_folder_a_shell_stands_in_is_no_secret() -> None:
    """R-T9: the variable PWD is not a password."""
    redactor = Redactor(environ={"PWD": "/home/someone/project", "DB_PWD": "hunter2-hunter2"})
    assert redactor.text("in /home/someone/project") == "in /home/someone/project"
    assert "hunter2" not in redactor.text("with hunter2-hunter2")


@given(sample=st.sampled_from(SECRETS), before=st.text(max_size=20), after=st.text(max_size=20))
def test_what_is_surely_clean_is_clean(
    sample: tuple[str, str, str, str], before: str, after: str
) -> None:
    """R-T9: the quick look never passes what the thorough one would redact."""
    redactor = Redactor(environ={})
    held = Trace(trace_id="t", query=f"{before} {''.join(sample[1:])} {after}")
    assert redactor.trace(held) is held or not redactor.surely_clean(msgspec.json.encode(held))


class Connection:
    """An agent's own object, whose text gives its password away."""

    def __str__(self) -> str:
        return "postgresql://me:hunter2secret@db/x"


def test_objects_of_an_agent_are_redacted_as_they_are_written() -> None:
    """R-T9: what is no JSON value is written as its text, and that holds no secret either."""
    with (
        proctor.capture("x") as seen,
        proctor.capture.tool_call("connect", {"to": Connection()}) as call,
    ):
        call.tool_output = Connection()
    clean = default_redactor().trace(seen)
    assert b"hunter2secret" not in msgspec.json.encode(clean, enc_hook=str)
    assert b"hunter2secret" in msgspec.json.encode(seen, enc_hook=str)
    untouched = {"when": datetime(2026, 1, 31, tzinfo=UTC), "set": {1, 2}}
    assert default_redactor().value(untouched) is untouched
