"""Detect secrets in text by name (`password`, `OPENAI_API_KEY`) and by shape.

Guarantees: one rule for mapping keys, environment variables and `name=value` in text. Names are
classified by how they end, because a name ending in a secret word holds one (`db_password`), and
one that only contains it does not (`max_tokens`, `password_policy`, `secret_santa`).
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Iterator
from functools import cache, lru_cache
from typing import NamedTuple

# Longer names are prose or data, never the name of a setting.
MAX_NAME = 80

_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")

_ALONE = {
    **dict.fromkeys(
        "password passwd passphrase passcode pwd pgpassword passwort".split(), "password"
    ),
    **dict.fromkeys("secret secretkey clientsecret".split(), "secret"),
    **dict.fromkeys("apitoken accesstoken authtoken".split(), "token"),
    "apikey": "api_key",
    "privatekey": "private_key",
    **{word: word for word in ("credential", "authorization", "cookie")},
}
"""Last words that are sufficient alone (plurals are the same name)."""

_PAIRS = {
    "key": {
        **dict.fromkeys(
            "api access account auth encryption master openai anthropic azure service signing "
            "storage subscription shared function priv hmac jwt license webhook groq cohere "
            "mistral gemini google pinecone tavily together fireworks deepseek openrouter sendgrid "
            "mailgun stripe twilio datadog ingest app application admin server".split(),
            "api_key",
        ),
        "secret": "secret",
        "private": "private_key",
        "ssh": "private_key",
    },
    "token": dict.fromkeys(
        "access account api app auth bearer bot client csrf deploy device github gitlab hf hub id "
        "identity login npm oauth personal private pypi refresh registry secret security "
        "service session slack telegram user vault webhook xsrf jwt sas pat discord figma notion "
        "linear sentry databricks circleci heroku grafana fly vercel netlify doppler twilio "
        "shopify atlassian jira docker cloudflare digitalocean mapbox dropbox replicate".split(),
        "token",
    ),
    "string": {"connection": "credential"},
    "signature": {"amz": "signature", "goog": "signature"},
    "pat": dict.fromkeys("github gitlab azure devops ado gh".split(), "token"),
    "pass": dict.fromkeys(
        "db user smtp mysql postgres redis root admin ftp database key ssh http proxy mail".split(),
        "password",
    ),
}
"""Last words that need a certain word before them: `cache_key` and `pad_token` are no secrets."""

BARE_TOKEN = "bare_token"
"""The name `token`, alone or after another word (`SNYK_TOKEN`): a secret only when its value looks
like one (models emit tokens too)."""

_POSITIONS = frozenset("page next prev previous continuation cursor sync start end".split())
"""`next_page_token` is where a list goes on."""


@lru_cache(maxsize=16_384)
def secret_kind(name: str) -> str | None:
    """Return the kind of secret a name holds; None when it holds none."""
    if not 3 <= len(name) <= MAX_NAME:
        return None
    words = [word.lower() for word in _WORDS.findall(name)]
    # `API_KEY_2` is an API key.
    while words and words[-1].isdigit():
        words.pop()
    if not words:
        return None
    last = words[-1]
    if last not in _ALONE and last not in _PAIRS and last.endswith("s"):
        last = last[:-1]
    if last in _ALONE:
        return _ALONE[last]
    if last == "token" and len(words) == 1:
        # `tokens` is a count or a list of words.
        return BARE_TOKEN if words[-1] == "token" else None
    if words[-3:] == ["client", "key", "data"]:  # a Kubernetes configuration
        return "private_key"
    if words[-3:] == ["secret", "key", "base"]:  # Rails
        return "secret"
    before = words[-2] if len(words) > 1 else ""
    if last == "token" and words[-1] == "tokens" and before not in ("access", "api", "auth"):
        return None
    unknown = BARE_TOKEN if last == "token" and before not in _POSITIONS else None
    return _PAIRS.get(last, {}).get(before, unknown)


# Secrets recognised by their shape: provider keys, JWTs, key blocks, URLs. Every search is linear
# in the text: patterns start with a literal (a fast scan), repeat one character class, and run only
# where a run of that class begins. They work on UTF-8 bytes, where the scan is fastest and
# positions are the same after lower-casing.


class SecretMatch(NamedTuple):
    """A secret in a text: bytes `start` to `end`, its kind, and quotes its mark needs."""

    start: int
    end: int
    kind: str
    quote: bytes = b""


Finder = Callable[[bytes, bytes], Iterator[SecretMatch]]
"""Searches a text, given as it is and in lower case."""


# A key begins where a word does; the last letter of an escape (`\\n`, `%3D`) is part of no word.
_KEY_START = rb"(?:(?<![A-Za-z0-9]%b)|(?<=[\\][nrt]%b)|(?<=%3D%b))"

_DIGIT = re.compile(rb"[0-9]")
_ALNUM_RUN = re.compile(rb"[A-Za-z0-9]{20}")


def _looks_random(body: bytes) -> bool:
    """Return whether it is a key, and not words joined by hyphens or underscores."""
    return bool(_DIGIT.search(body) or _ALNUM_RUN.search(body))


_KEYS: dict[str, str] = {
    "anthropic_key": "sk-ant-",
    "openrouter_key": "sk-or-",
    "langfuse_key": "sk-lf-",
    "openai_key": "sk-",
    "slack_token": "xoxa- xoxb- xoxc- xoxd- xoxe- xoxe. xoxo- xoxp- xoxr- xoxs- xapp- xwfp-",
    "gitlab_token": "glpat- gldt- glrt- glrtr- glft- glcbt- glsoat- glptt- glimt- glagent- gloas- "
    "glffct- GR1348941",
    "google_secret": "GOCSPX-",
    "google_token": "ya29.",
    "perplexity_key": "pplx-",
    "xai_key": "xai-",
    "github_token": "ghp_ gho_ ghu_ ghs_ ghr_ github_pat_",
    "huggingface_token": "hf_ api_org_",
    "groq_key": "gsk_",
    "npm_token": "npm_",
    "stripe_key": "sk_live_ sk_test_ rk_live_ rk_test_ sk_org_live_ sk_org_test_ whsec_",
    "langsmith_key": "lsv2_pt_ lsv2_sk_ ls__",
    "replicate_token": "r8_",
    "digitalocean_token": "dop_v1_ doo_v1_ dor_v1_",
    "pypi_token": "pypi-",
    "vault_token": "hvs. hvb. hvr.",
    "docker_token": "dckr_pat_ dckr_oat_",
    "shopify_token": "shpat_ shpca_ shppa_ shpss_ shptka_ shpua_",
    "linear_key": "lin_api_ lin_oauth_ lin_wh_",
    "notion_token": "ntn_",
    "figma_token": "figd_ figdr_ figo_ figor_ figu_ figur_ figoh_ figdh_",
    "supabase_key": "sbp_ sb_secret_",
    "postman_key": "PMAK- PMAT-",
    "newrelic_key": "NRAK- NRAA- NRII- NRIQ- NRJS- NRRA- NRBR-",
    "sentry_token": "sntrys_ sntryu_ sntrya_ sntryi_",
    "grafana_token": "glsa_ glc_",
    "pinecone_key": "pcsk_",
    "tavily_key": "tvly-",
    "together_key": "tgp_v1_",
    "doppler_token": "dp.pt. dp.st. dp.ct. dp.sa. dp.said. dp.scim. dp.audit.",
    "fly_token": "fo1_ fm1r_ fm1a_ fm2_",
    "age_key": "AGE-SECRET-KEY-1 AGE-SECRET-KEY-PQ-1 AGE-PLUGIN-",
    "square_token": "sq0atp- sq0csp- sq0acp-",
    "heroku_key": "HRKU-",
    "hubspot_token": "pat-na1- pat-na2- pat-eu1-",
    "pulumi_token": "pul-",
    "planetscale_token": "pscale_tkn_ pscale_pw_ pscale_oauth_",
    "sonar_token": "squ_ sqp_ sqa_",
    "brevo_key": "xkeysib- xsmtpsib-",
    "dynatrace_token": "dt0c01. dt0s01.",
    "nvidia_key": "nvapi-",
    "cerebras_key": "csk-",
    "rubygems_key": "rubygems_",
    "netlify_token": "nfp_",
    "neon_key": "napi_",
    "posthog_key": "phx_ phs_",
    "logfire_token": "pylf_v1_ pylf_v2_",
    "contentful_token": "CFPAT-",
    "circleci_token": "CCIPAT_ CCIPRJ_",
    "buildkite_token": "bkua_",
    "prefect_key": "pnu_ pnb_",
    "openshift_token": "sha256~",
    "wandb_key": "wandb_v1_",
    "jina_key": "jina_",
    "e2b_key": "e2b_",
    "mapbox_token": "sk.eyJ",
    "aws_session_token": "IQoJb3JpZ2luX2Vj FwoGZXIvYXdz",
    "aws_bedrock_key": "ABSK bedrock-api-key-",
    "shippo_token": "shippo_live_ shippo_test_",
    "duffel_token": "duffel_live_ duffel_test_",
    "readme_key": "rdme_",
    "flutterwave_key": "FLWSECK- FLWSECK_TEST-",
    "sourcegraph_token": "sgp_ slk_",
    "chutes_key": "cpk_",
    "browserbase_key": "bb_live_ bb_test_",
    "apify_token": "apify_api_",
    "tailscale_key": "tskey-",
    "clojars_token": "CLOJARS_",
    "packagist_token": "packagist_ort_ packagist_ack_ packagist_uut_",
    "hex_key": "hexpm_",
    "plaid_token": "access-production- access-development- access-sandbox-",
    "gemini_key": "AQ.Ab",
    "yandex_key": "AQVN",
    "dbt_token": "dbtc_ dbtu_",
    "elastic_key": "essu_ essa_",
    "anyscale_key": "esecret_",
}
"""Kind → prefixes. What follows one is letters, digits, `-` and `_`, and must look random."""

_BODY = rb"[A-Za-z0-9_-]{16,}+"
_BODIES = {
    "slack_token": rb"[A-Za-z0-9_%-]{10,}+",  # cookies are encoded for URLs
    "google_secret": rb"[A-Za-z0-9_-]{10,}+",
    "gitlab_token": rb"[A-Za-z0-9_-]{10,}+(?:\.[A-Za-z0-9]{2}\.[A-Za-z0-9]{7,9})?+",
    "chutes_key": rb"[0-9a-f]{32}\.[0-9a-f]{32}\.[A-Za-z0-9]{16,}+",
    # Shorter ones are words: `sk-learn`.
    "openai_key": rb"[A-Za-z0-9_-]{20,}+",
    "doppler_token": rb"(?:[a-z0-9_-]{1,35}\.)?[A-Za-z0-9]{16,}+",
    **dict.fromkeys(("perplexity_key", "xai_key"), rb"[A-Za-z0-9]{20,}+"),
    "age_key": rb"[A-Z0-9-]{16,}+",
    "google_token": rb"(?:[a-z]\.)?+[A-Za-z0-9_-]{16,}+(?:\.[A-Za-z0-9_-]{8,}+)*+",
    "fly_token": rb"[A-Za-z0-9+/=_,-]{16,}+",
    "sentry_token": rb"[A-Za-z0-9+/=_-]{16,}+",
    "grafana_token": rb"[A-Za-z0-9+/_-]{16,}+={0,2}+",
    "aws_session_token": rb"[A-Za-z0-9+/_%-]{60,}+={0,2}+",
    "aws_bedrock_key": rb"[A-Za-z0-9+/_-]{60,}+={0,2}+",
    "dynatrace_token": rb"[A-Z0-9]{16,}+\.[A-Z0-9]{32,}+",
    "mapbox_token": rb"[A-Za-z0-9_-]{16,}+\.[A-Za-z0-9_-]{16,}+",
    "vault_token": rb"[A-Za-z0-9_-]{20,}+",
    "stripe_key": rb"[A-Za-z0-9_+/-]{16,}+={0,2}+",
}

# Prefixes that names in code have as well: no word follows in a key.
_ONE_RUN = rb"(?=[A-Za-z]*+[0-9])[A-Za-z0-9]{24,}+(?![A-Za-z0-9_-])"
_SHAPES: tuple[tuple[str, str, bytes], ...] = (
    ("google_key", "AIza", rb"[A-Za-z0-9_-]{30,}+"),
    ("sendgrid_key", "SG.", rb"[A-Za-z0-9_-]{16,}+\.[A-Za-z0-9_-]{16,}+"),
    ("mailgun_key", "key- pubkey-", rb"[0-9a-f]{32}(?![A-Za-z0-9])"),
    ("databricks_token", "dapi dose", rb"[0-9a-f]{32}(?:-[0-9])?+(?![A-Za-z0-9])"),
    ("notion_token", "secret_", rb"[A-Za-z0-9]{40,50}(?![A-Za-z0-9_])"),
    ("atlassian_token", "ATATT3 ATCTT3 ATSTT3", rb"[A-Za-z0-9_=-]{20,}+"),
    ("atlassian_token", "ATBB", rb"[A-Za-z0-9_=.-]{20,}+"),
    ("fireworks_key", "fw_", rb"(?=[A-Za-z]*+[0-9])[A-Za-z0-9]{20,}+(?!_)"),
    ("resend_key", "re_", rb"[A-Za-z0-9]{6,}+_(?=[A-Za-z]*+[0-9])[A-Za-z0-9]{16,}+(?!_)"),
    ("elevenlabs_key", "sk_", rb"[0-9a-f]{32,}+(?![A-Za-z0-9_])"),
    ("facebook_token", "EAA", rb"[A-Za-z0-9]{60,}+(?![A-Za-z0-9+/=])"),
    ("square_token", "EAAA", rb"[A-Za-z0-9_-]{60}(?![A-Za-z0-9_+/=-])"),
    ("alibaba_key", "LTAI", rb"[A-Za-z0-9]{12,24}(?![A-Za-z0-9+/])"),
    ("artifactory_key", "AKCp", rb"[A-Za-z0-9]{60,}+(?![A-Za-z0-9+/=])"),
    ("grafana_token", "eyJrIjoi", rb"[A-Za-z0-9+/_-]{30,}+={0,2}"),
    ("firecrawl_key", "fc-", rb"[0-9a-f]{32}(?![A-Za-z0-9])"),
    ("terraform_token", "atlasv1.", rb"[A-Za-z0-9_=-]{40,}+"),
    ("dropbox_token", "sl.", rb"[A-Za-z0-9_-]{100,}+"),
    ("launchdarkly_key", "sdk-", rb"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"),
    ("onepassword_token", "ops_eyJ", rb"[A-Za-z0-9_-]{60,}+={0,2}"),
    ("voyage_key", "pa-", rb"(?=[A-Za-z_-]*+[0-9])[A-Za-z0-9_-]{43}(?![A-Za-z0-9_-])"),
    ("easypost_key", "EZAK EZTK", rb"(?=[A-Za-z]*+[0-9])[A-Za-z0-9]{54}(?![A-Za-z0-9])"),
    ("cloudflare_key", "v1.0-", rb"[0-9a-f]{24}-[0-9a-f]{146}"),
    ("nuget_key", "oy2", rb"(?=[a-z]*+[0-9])[a-z0-9]{43}(?![A-Za-z0-9])"),
    ("artifactory_key", "cmVmdGtuOj", rb"[A-Za-z0-9]{40,}+"),
    ("airtable_token", "pat", rb"[A-Za-z0-9]{14}\.[0-9a-f]{64}(?![A-Za-z0-9])"),
    ("clickup_token", "pk_", rb"[0-9]{5,10}_[A-Z0-9]{32}(?![A-Za-z0-9])"),
    ("crates_token", "cio", rb"(?=[A-Za-z]*+[0-9])[A-Za-z0-9]{32}(?![A-Za-z0-9])"),
    ("brave_key", "BSA", rb"(?=[A-Za-z_-]*+[0-9])[A-Za-z0-9_-]{28}(?![A-Za-z0-9_-])"),
    ("vercel_token", "vcp_ vci_ vca_ vcr_ vck_", _ONE_RUN),
    ("vercel_token", "vercel_blob_rw_", rb"[A-Za-z0-9_]{20,}+"),
    ("render_key", "rnd_", _ONE_RUN),
    (
        "paypal_token",
        "access_token$production$ access_token$sandbox$",
        rb"[a-z0-9]{16}[$][0-9a-f]{32}",
    ),
    ("infura_key", "infura.io/v3/", rb"([0-9a-f]{32})(?![A-Za-z0-9])"),
    ("alchemy_key", "alchemy.com/v2/", rb"([A-Za-z0-9_-]{32})(?![A-Za-z0-9_-])"),
    ("pagerduty_key", "events.pagerduty.com/integration/", rb"([0-9a-f]{32})(?![0-9a-f])"),
    (
        "feishu_webhook",
        "open.feishu.cn/open-apis/ open.larksuite.com/open-apis/",
        rb"bot/v2/hook/([0-9a-f-]{36})",
    ),
    ("adafruit_key", "aio_", _ONE_RUN),
    ("friendli_token", "flp_", _ONE_RUN),
    ("typeform_token", "tfp_", rb"(?=[A-Za-z_-]*+[0-9])[A-Za-z0-9_-]{40,}+"),
    ("modal_token", "ak- as-", rb"(?=[A-Za-z]*+[0-9])[A-Za-z0-9]{22}(?![A-Za-z0-9_-])"),
    ("composio_key", "ak_", rb"(?=[A-Za-z]*+[0-9])[A-Za-z0-9_-]{20}(?![A-Za-z0-9_-])"),
    ("lob_key", "live_ test_", rb"[0-9a-f]{35}(?![A-Za-z0-9])"),
    ("tencent_key", "AKID", rb"[A-Za-z0-9]{32}(?![A-Za-z0-9+/])"),
    ("yandex_token", "t1.", rb"[A-Za-z0-9_-]{20,}+={0,2}+\.[A-Za-z0-9_-]{40,}+={0,2}+"),
    ("infisical_token", "st.", rb"[0-9a-f-]{24,36}\.[0-9a-f]{32}\.[0-9a-f]{32}(?![0-9a-f])"),
    ("onepassword_key", "A3-", rb"[A-Z0-9]{6}-[A-Z0-9]{6}(?:-[A-Z0-9]{5}){4}(?![A-Za-z0-9-])"),
    ("amazon_mws_key", "amzn.mws.", rb"[0-9a-f-]{36}"),
    ("zapier_webhook", "hooks.zapier.com/", rb"hooks/[a-z]{1,16}/[0-9]{1,16}/([A-Za-z0-9]{5,}+)"),
    (
        "ifttt_webhook",
        "maker.ifttt.com/",
        rb"(?:use|trigger/[^/\s]{1,100}/(?:json/)?with/key)/([A-Za-z0-9_-]{16,}+)",
    ),
    (
        "make_webhook",
        "hook.eu1.make.com/ hook.eu2.make.com/ hook.us1.make.com/ hook.us2.make.com/",
        rb"([a-z0-9]{24,}+)",
    ),
    (
        "password_hash",
        "SCRAM-SHA-256$ SCRAM-SHA-1$",
        rb"[0-9]++:[A-Za-z0-9+/=]{8,}+[$][A-Za-z0-9+/=]{16,}+:[A-Za-z0-9+/=]{16,}+",
    ),
    (
        "password_hash",
        "pbkdf2_sha256$ pbkdf2_sha1$",
        rb"[0-9]++[$][A-Za-z0-9+/=._-]{4,64}+[$][A-Za-z0-9+/=]{16,}+",
    ),
    (
        "slack_webhook",
        "hooks.slack.com/ hooks.slack-gov.com/",
        rb"(?:services|workflows|triggers)/([A-Za-z0-9_/-]{16,}+)",
    ),
    (
        "discord_webhook",
        "discord.com/api/ discordapp.com/api/",
        rb"(?:v[0-9]{1,2}/)?webhooks/[0-9]{6,}+/([A-Za-z0-9_-]{16,}+)",
    ),
    ("teams_webhook", "webhook.office.com/", rb"webhookb2/([A-Za-z0-9@/_-]{32,}+)"),
    ("teams_webhook", "outlook.office.com/", rb"webhook/([A-Za-z0-9@/_-]{32,}+)"),
)
"""Kind, prefixes, and exactly what follows; a group in it is the secret, else all of it is."""


@cache
def _key_pattern(prefix: bytes, body: bytes) -> re.Pattern[bytes]:
    """Return a pattern that starts with the literal prefix, which makes the scan fast."""
    literal = re.escape(prefix)
    return re.compile(literal + _KEY_START.replace(b"%b", literal) + body)


def _keys(prefix: bytes, kind: str, body: bytes, *, random: bool) -> Finder:
    """Return a search for keys with this prefix, compiled when it is first needed."""

    def find(data: bytes, _low: bytes) -> Iterator[SecretMatch]:
        for match in _key_pattern(prefix, body).finditer(data):
            if not random or _looks_random(data[match.start() + len(prefix) : match.end()]):
                yield SecretMatch(*match.span(match.lastindex or 0), kind)

    return find


_AWS_ID = re.compile(rb"A(?:KIA|SIA|BIA|CCA)[A-Z0-9]{16}(?![A-Za-z0-9])")
_AWS_SECRET = re.compile(rb"(?<![A-Za-z0-9/+=])[A-Za-z0-9/+]{40}(?![A-Za-z0-9/+=])")


def aws(data: bytes, _low: bytes) -> Iterator[SecretMatch]:
    """Yield AWS access key ids, and next to one also bare 40-character secrets."""
    found = False
    for match in _AWS_ID.finditer(data):
        if match.start() and data[match.start() - 1 : match.start()].isalnum():
            continue
        found = True
        yield SecretMatch(*match.span(), "aws_key")
    if found:
        for match in _AWS_SECRET.finditer(data):
            secret = match.group()
            # Hashes have one case only.
            if not (secret.islower() or secret.isupper()) and _DIGIT.search(secret):
                yield SecretMatch(*match.span(), "aws_secret")


# Signed or not.
_JWT = rb"(?<![A-Za-z0-9_-])eyJ[A-Za-z0-9_-]{8,}+\.eyJ[A-Za-z0-9_-]{8,}+(?:\.[A-Za-z0-9_-]*+)?"


_BEARER = re.compile(
    rb"(?:bearer(?<![a-z0-9]bearer)|ssws(?<![a-z0-9]ssws))[ \t]{1,4}+"
    rb"([a-z0-9._~+/=-]{12,})"
)
_BASIC = re.compile(rb"basic(?<![a-z0-9]basic)[ \t]{1,4}+([a-z0-9+/]{6,}+={0,2})(?![a-z0-9+/=])")


def bearer(data: bytes, low: bytes) -> Iterator[SecretMatch]:
    """Yield the token after `Bearer`."""
    for match in _BEARER.finditer(low):
        token = data[match.start(1) : match.end(1)]
        if _looks_random(token):
            yield SecretMatch(*match.span(1), "bearer_token")


def basic(data: bytes, low: bytes) -> Iterator[SecretMatch]:
    """Yield the `user:password` after `Basic`; other words after "basic" are prose."""
    for match in _BASIC.finditer(low):
        encoded = data[match.start(1) : match.end(1)]
        try:
            plain = base64.b64decode(encoded + b"=" * (-len(encoded) % 4), validate=True)
        except binascii.Error:
            continue
        if b":" in plain and plain.decode("latin-1").isprintable():
            yield SecretMatch(*match.span(1), "basic_auth")


_KEY_BLOCK = re.compile(rb"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
# Characters inside a block, in files, JSON strings and JSON inside JSON strings; no quotes, so that
# a block never extends past its string.
_KEY_REST = re.compile(
    rb"(?:[A-Za-z0-9+/=\s:,.]|-(?!----)|[\\]++[nr])*+-----END [A-Z0-9 ]{0,40}PRIVATE KEY"
    rb"(?: BLOCK)?-----"
)
_KEY_CUT_SHORT = re.compile(rb"(?:[A-Za-z0-9+/=]{20,}+|\s++|[\\]++[nr])*+")
# An RSA key of 16,384 bits takes 13 kB; anything longer is not one key.
_MAX_KEY_BLOCK = 32_768


def private_key(data: bytes, _low: bytes) -> Iterator[SecretMatch]:
    """Yield private key blocks; a truncated one extends as far as it goes."""
    position = 0
    while begin := _KEY_BLOCK.search(data, position):
        limit = begin.end() + _MAX_KEY_BLOCK
        rest = _KEY_REST.match(data, begin.end(), limit) or _KEY_CUT_SHORT.match(
            data, begin.end(), limit
        )
        position = rest.end() if rest else begin.end()
        yield SecretMatch(begin.start(), position, "private_key")


# Brackets and braces are percent-encoded in real URLs: `{password}` is a template, not a secret.
_USERINFO = re.compile(rb"://([^\s/?#@:\"'<>\\]{0,256}+)(?::([^\s/?#\"'<>\\\[\]{}|)]{1,512}))?@")


def userinfo(data: bytes, _low: bytes) -> Iterator[SecretMatch]:
    """Yield the password of a URL, and a user name that is a token (`https://TOKEN@host`)."""
    for match in _USERINFO.finditer(data):
        if match.group(2):
            yield SecretMatch(*match.span(2), "password")
        if len(match.group(1)) >= 16 and _RANDOM.match(match.group(1)):
            yield SecretMatch(*match.span(1), "token")


# -- on command lines and in files --

_FLAG = re.compile(
    rb"--(?<![A-Za-z0-9-]--)([A-Za-z][A-Za-z0-9_-]{1,60}+)(?:[\"'],)?[ \t]{1,8}+([\"'])?"
    rb"([^\s\"'`,;&<>(){}\[\]|\\-][^\s\"'`,;&<>(){}\[\]|\\]*+)"
)
# What may follow the last word of a command line: its end, another option, the next command.
_COMMAND_GOES_ON = re.compile(rb"[ \t]*+(?:\r?\n|\Z|[\"'`|;&\\]|-)")

_PROSE = re.compile(rb"[a-z][,.;:] [A-Za-z]")


def flags(data: bytes, _low: bytes) -> Iterator[SecretMatch]:
    """Yield the value after `--password`, `--token` and similar options."""
    for match in _FLAG.finditer(data):
        name, value = match.group(1), match.group(3)
        # Numbered passes are no passwords.
        kind = "password" if name == b"pass" and len(value) > 5 else secret_kind(name.decode())
        if kind is None or _NOT_A_VALUE.match(value) or value.isupper():
            continue  # `--password PASSWORD` is the usage line of a program
        if kind == BARE_TOKEN and name != b"token" and not _RANDOM.match(value):
            continue  # `--pad-token eos`
        # A plain word is prose (`--token is required`) unless the command ends or goes on.
        line = data[data.rfind(b"\n", max(0, match.start() - 400), match.start()) : match.start()]
        ends = len(value) >= 8 and _COMMAND_GOES_ON.match(data, match.end())
        ends = ends and not _PROSE.search(line)
        if match.group(2) or _VALUE_SIGNS.search(value) or ends:
            yield SecretMatch(*match.span(3), "token" if kind == BARE_TOKEN else kind)


_VALUE = rb"[\\]*+[\"']?+([^\s\"'`\\$<{][^\s\"'`\\]*+)"
_COMMAND_PASSWORDS = re.compile(
    rb"[ \t\"'](?:(?:-[A-Za-z]{0,6}u|--user|--proxy-user|-U)[\"',]*+[ \t=]{0,4}+[\\]*+[\"']?+"
    rb"[^\s:\"'`\\$<{]{1,128}+:" + _VALUE + rb"|-p[ \t]?" + _VALUE + rb")"
)
_WITH_USER = re.compile(rb"curl\b[^\n]{0,400}\Z")
_WITH_PASSWORD = re.compile(
    rb"(?:sshpass|mysql(?:dump|admin|import)?|docker login)\b[^\n]{0,400}\Z"
)


def commands(data: bytes, _low: bytes) -> Iterator[SecretMatch]:
    """Yield the password in `curl -u user:password`, `mysql -ppassword` and similar commands."""
    for match in _COMMAND_PASSWORDS.finditer(data):
        before = data[max(0, match.start() - 400) : match.start() + 1]
        is_user = match.lastindex == 1
        if (_WITH_USER if is_user else _WITH_PASSWORD).search(before):
            value = match.group(match.lastindex or 0)
            # `mysql -p shop`: there a password follows at once, and a word apart is a database.
            if b"mysql" in before and match.group().startswith((b" -p ", b"\t-p ")):
                continue
            if not _NOT_A_VALUE.match(value) and not (value.isdigit() and not is_user):
                yield SecretMatch(*match.span(match.lastindex or 0), "password")


# Other commands, with the place of the password after each.
_IN_COMMANDS = tuple(
    (
        command.encode(),
        re.compile(
            rb"(?i:"
            + command.encode().removesuffix(b" -a")
            + rb")[^\n|;&]{0,200}?[ \t]"
            + place
            + _VALUE
        ),
    )
    for command, place in (
        ("redis-cli", rb"(?:-a|--pass)[ \t=]{1,4}+"),
        ("mongo", rb"-p[ \t]{1,4}+"),
        ("az login", rb"-p[ \t]{1,4}+"),
        ("registry login", rb"-p[ \t]{1,4}+"),
        ("podman login", rb"-p[ \t]{1,4}+"),
        ("twine", rb"-p[ \t]{1,4}+"),
        ("psexec", rb"-p[ \t]{1,4}+"),
        ("sqlcmd", rb"-P[ \t]{0,4}+"),
        ("unzip", rb"-P[ \t]{0,4}+"),
        ("7z", rb"-p"),
        ("http -a", rb"-a[ \t]{1,4}+[^\s:]{1,128}+:"),
        ("net use", rb"/user:[^\s]{1,256}+[ \t]{1,4}+"),
        ("convertto-securestring", rb"(?:-[Ss]tring[ \t]{1,4}+)?+"),
        ("ldap", rb"-w[ \t]{1,4}+"),
        ("openssl", rb"(?:-k[ \t]{1,4}+|-pass(?:in|out)?[ \t]{1,4}+pass:)"),
        ("smbclient", rb"-U[ \t]{0,4}+[\"']?+[^\s%\"']{1,128}+%"),
        (
            "htpasswd",
            rb"-[A-Za-z]{0,8}b[A-Za-z]{0,8}[ \t]{1,4}+(?:[^\s]{1,256}+[ \t]{1,4}+){2}",
        ),
    )
)


def command_options(data: bytes, low: bytes) -> Iterator[SecretMatch]:
    """Yield the password of an option that only some commands read so: `redis-cli -a …`."""
    for command, pattern in _IN_COMMANDS:
        if command in low:
            for match in pattern.finditer(data):
                if not _NOT_A_VALUE.match(match.group(1)):
                    yield SecretMatch(*match.span(1), "password")


# A name in two words, in prose: "API key: …", "the auth token is …".
_SPOKEN = tuple(
    re.compile(
        # Also in Markdown: **API key:** `…`.
        b" " + stem + rb"\*{0,2}+(?:[ \t](?:is|was):?+[ \t]|[ \t]?[:=]\*{0,2}+[ \t]?|[ \t])[\"'`]?+"
        rb"([^\s\"'`,;<>(){}\[\]|\\]{16,256}+)"
    )
    for stem in (b"key", b"token", b"secret", b"password")
)
_PASSWORD_IS = re.compile(
    rb"password[ \t](?:is|was):?+[ \t][\"'`]?+([^\s\"'`<>(){}\[\]|\\]{8,128}+)"
)
# "The password is base64-encoded" says how, "is Tr0ub4dor&3" says what.
_NO_WORD = re.compile(rb"(?=[^0-9]*+[0-9])(?=[^a-z]*+[a-z])(?:.*[!@#$%^&*=~]|.*[a-z][0-9]++[a-z])")
_BEFORE = tuple(
    b"api access auth secret private license account bot service master admin vault app client "
    b"bearer signing root".split()
)
_ONE_PIECE = re.compile(rb"[A-Za-z0-9]{16}|[0-9a-f]{8}-[0-9a-f]{4}-")


def spoken(data: bytes, low: bytes) -> Iterator[SecretMatch]:
    """Yield a random value after a name in two words."""
    for match in (match for pattern in _SPOKEN for match in pattern.finditer(low)):
        if not low.endswith(_BEFORE, 0, match.start()):
            continue
        value = data[match.start(1) : match.end(1)].rstrip(b".:!?")
        if _RANDOM.match(value) and _ONE_PIECE.search(value) and b"://" not in value:
            kind = "token" if match.group().startswith(b" token") else "api_key"
            yield SecretMatch(match.start(1), match.start(1) + len(value), kind)
    for match in _PASSWORD_IS.finditer(low):
        value = match.group(1).rstrip(b".,;:!?")
        if _NO_WORD.match(value) and b"://" not in value:
            yield SecretMatch(match.start(1), match.start(1) + len(value), "password")


_BLANK = rb"(?:\s|[\\][nt]){1,16}+"
_WORD = rb"[^\s\\\"']{1,256}+"
_NETRC_ENTRY = (
    _BLANK + rb"(?:(?:login|account)" + _BLANK + _WORD + _BLANK + rb"){0,2}password" + _BLANK
    + rb"([^\s\\\"']{1,256}+)"
)  # fmt: skip
_NETRC = rb"machine" + _BLANK + _WORD + _NETRC_ENTRY
_NETRC_DEFAULT = rb"default" + _BLANK + rb"login" + _BLANK + _WORD + _NETRC_ENTRY
_HASH = (
    rb"\$(?:[1567y]|gy|2[abxy]?|apr1|argon2(?:id|i|d)|scrypt|pbkdf2[a-z0-9-]*+)"
    rb"\$[A-Za-z0-9./=,$+-]{20,}+"
)
_DOCKER_AUTH = rb"\"?auth[\\]*+\"[ \t]*+:\s*+[\\]*+\"([A-Za-z0-9+/]{6,}+={0,2})[\\]*+\""
_URL_PARAMETER = rb"=(?<=[?&;]%b=)([A-Za-z0-9_.~%%+/=-]{16,}+)"

_ELEMENT = re.compile(rb"<([A-Za-z][A-Za-z0-9_.:-]{2,80}+)>([^<>\r\n]{1,4096}+)</")
_CALL = re.compile(
    rb"\([ \t]*+[\\]?([\"'])([A-Za-z][A-Za-z0-9_-]{2,80}+)[\\]?\1,[ \t]*+[\\]?([\"'])"
    rb"([^\s\"'\\]{6,4096}+)[\\]?\3"
)
_ARGUMENT = re.compile(rb"\(([\"'])([^\s\"'\\]{6,4096}+)\1\)")
_SETTER = re.compile(rb"\b((?:set|with|use)[A-Za-z_]{3,40}+)\Z")
_PASSWORD_INPUT = (
    rb"<input\b(?=[^<>]{0,2000}?\btype=[\\]?[\"']?password)[^<>]{0,2000}?\bvalue=[\\]?[\"']"
    rb"([^\"'<>\\]{1,4096}+)"
)


def named_in_code(data: bytes, _low: bytes) -> Iterator[SecretMatch]:
    """Yield `<password>…</password>`, `setenv("API_KEY", "…")` and `setPassword("…")`."""
    found = [(match, match.group(1), 2) for match in _ELEMENT.finditer(data)]
    found += [(match, match.group(2), 4) for match in _CALL.finditer(data)]
    for match in _ARGUMENT.finditer(data):
        if setter := _SETTER.search(data[max(0, match.start() - 50) : match.start()]):
            found.append((match, setter.group(1), 2))
    for match, name, group in found:
        kind, value = secret_kind(name.decode()), match.group(group)
        if kind is None or _NOT_A_VALUE.match(value) or value.isupper():
            continue  # in capitals: the name of a variable
        if (_RANDOM.match if kind == BARE_TOKEN else _VALUE_SIGNS.search)(value):
            yield SecretMatch(*match.span(group), "token" if kind == BARE_TOKEN else kind)


class SecretPattern(NamedTuple):
    """A search, and lower-case texts of which one must occur for it to match."""

    needles: tuple[bytes, ...]
    find: Finder


def _search(
    kind: str, pattern: bytes, *needles: bytes, before: int = 0, random: bool = False
) -> SecretPattern:
    """Return a search for a pattern; its group, if it has one, is the secret.

    `before` is how many bytes before the match belong to the secret; with `random` it must have
    letters and digits.
    """
    compiled = re.compile(pattern)

    def find(data: bytes, _low: bytes) -> Iterator[SecretMatch]:
        for match in compiled.finditer(data):
            start, end = match.span(compiled.groups)
            if not random or _RANDOM.match(data[start:end]):
                yield SecretMatch(start - before, end, kind)

    return SecretPattern(needles, find)


_ROWS: list[tuple[str, str, bytes, bool]] = [
    *((kind, prefixes, _BODIES.get(kind, _BODY), True) for kind, prefixes in _KEYS.items()),
    *((kind, prefixes, body, False) for kind, prefixes, body in _SHAPES),
]

KEY_DETECTORS = (
    SecretPattern((b"akia", b"asia", b"abia", b"acca"), aws),
    *(
        SecretPattern((prefix.lower(),), _keys(prefix, kind, body, random=random))
        for kind, prefixes, body, random in _ROWS
        for prefix in prefixes.encode().split()
    ),
)
"""Searches for keys that begin with a needle, where a word begins."""

WORD_DETECTORS = (
    SecretPattern((b"bearer", b"ssws "), bearer),
    SecretPattern((b"basic",), basic),
    _search("basic_auth", _DOCKER_AUTH, b"auths"),
    _search("password", _NETRC, b"machine"),
    _search("password", _NETRC_DEFAULT, b"default login"),
    SecretPattern(tuple(command for command, _ in _IN_COMMANDS), command_options),
    SecretPattern((b"curl", b"sshpass", b"mysql", b"docker login"), commands),
)
"""Searches for what begins with a word, which is a needle."""

OTHER_DETECTORS = (
    SecretPattern((b"-----begin",), private_key),
    _search("jwt", _JWT, b".eyj"),
    SecretPattern((b"://",), userinfo),
    _search("signature", b"sig" + _URL_PARAMETER % b"sig", b"sig="),
    _search("api_key", b"key" + _URL_PARAMETER % b"key", b"key", random=True),
    _search(
        "google_token",
        rb"1//0(?:(?<![A-Za-z0-9]1//0)|(?<=[\\][nrt]1//0))[A-Za-z0-9_-]{20,}+",
        b"1//0",
    ),
    _search("telegram_token", rb":(?<=[0-9]{8}:)(AA[A-Za-z0-9_-]{30,}+)", b":aa"),
    _search(
        "azure_secret",
        rb"Q~(?<=[A-Za-z0-9_~.-]{3}[78]Q~)[A-Za-z0-9_~.-]{30,}+",
        *(b"7q~", b"8q~"),
        before=4,
    ),
    _search(
        "password_hash",
        _HASH,
        *(b"$%b$" % each for each in b"1 5 6 7 y gy 2a 2b 2x 2y apr1 scrypt".split()),
        *(b"$argon2", b"$pbkdf2"),
    ),
    *(
        _search("api_key", name + _URL_PARAMETER % name, name + b"=", random=True)
        for name in (b"auth", b"appid")
    ),
    _search("api_key", rb"code=(?<=[?&;]code=)([A-Za-z0-9_.~%+/=-]{40,}+)", b"code=", random=True),
    _search("basic_auth", rb"_auth[ \t]{0,4}+=[ \t]{0,4}+\"?+([A-Za-z0-9+/]{8,}+={0,2})", b"_auth"),
    _search(
        "password_hash",
        rb"\{S?(?:SHA(?:256|512)?|MD5)\}([A-Za-z0-9+/]{16,}+={0,2})",
        *(b"sha}", b"sha256}", b"sha512}", b"{smd5}"),
    ),
    _search("newrelic_key", rb"NRAL(?<=[0-9A-Fa-fux]{36}NRAL)(?![A-Za-z0-9])", b"nral", before=36),
    _search(
        "azure_token",
        rb"AZDO(?<=[A-Za-z0-9]{76}AZDO)[A-Za-z0-9]{4}(?![A-Za-z0-9])",
        b"azdo",
        before=76,
    ),
    _search(
        "azure_key", rb"JQQJ99(?<=[A-Za-z0-9]{52}JQQJ99)[A-Za-z0-9]{20,}+", b"jqqj99", before=52
    ),
    _search(
        "firebase_key",
        rb":APA91b(?<=[A-Za-z0-9_-]{11}:APA91b)[A-Za-z0-9_-]{60,}+",
        b":apa91b",
        before=11,
    ),
    _search(
        "password_hash",
        rb"(?:scrypt|pbkdf2):[a-z0-9:]{3,40}+[$]([A-Za-z0-9]{4,64}+[$][0-9a-f]{32,}+)",
        *(b"scrypt:", b"pbkdf2:"),
    ),
    _search(
        "mailchimp_key",
        rb"-us(?<=[0-9a-f]{32}-us)[0-9]{1,2}(?![A-Za-z0-9])",
        b"-us",
        before=32,
    ),
    _search("aws_secret", rb"secret_access_key[ \t]++([A-Za-z0-9/+]{30,}+)", b"secret"),
    _search(
        "signature",
        rb"ignature=(?<=[?&][Ss]ignature=)([A-Za-z0-9_.~%+/=-]{32,}+)",
        b"signature",
    ),
    SecretPattern((b"pass", b"pwd", b"secret", b"key", b"token", b"authorization"), named_in_code),
    _search("password", _PASSWORD_INPUT, b"<input"),
    SecretPattern((b" key", b" token", b" secret", b" password"), spoken),
    SecretPattern((b"pass", b"pwd", b"secret", b"key", b"token"), flags),
)

# Keys whose only fixed part is in their middle, or has two letters: kind, pattern, bytes before.
_UNPREFIXED = (
    *(
        (
            "twilio_key",
            rb"%b(?:(?<![A-Za-z0-9+/_-]%b)|(?<=[\\][nrt]%b))[0-9a-f]{32}(?![A-Za-z0-9+/_-])"
            % (start, start, start),
            0,
        )
        for start in (b"SK", b"AC")
    ),
    (
        "mailgun_key",
        (
            rb"-[0-9a-f]{8}-[0-9a-f]{8}(?![A-Za-z0-9-])"
            rb"(?:(?<=[^0-9A-Za-z-][0-9a-f]{32}.{18})|(?<=\A[0-9a-f]{32}.{18}))"
        ),
        32,
    ),
    *(
        (
            "discord_token",  # of a bot: its number, of 18 or 19 digits, is in front
            # Not in front of a mark: there, a longer word may have stood that was no token.
            rb"\.(?<=[MNO][A-Za-z0-9]{%d}\.)[A-Za-z0-9_-]{6}\.[A-Za-z0-9_-]{27,38}"
            rb"(?![A-Za-z0-9_.-]|\[redacted:)" % (length - 1),
            length,
        )
        for length in (24, 26)
    ),
)
UNPREFIXED = tuple(re.compile(pattern) for _, pattern, _ in _UNPREFIXED)
LONG_RUN = b"\0"
"""Marks, among the needles, a text in which one of `UNPREFIXED` may match."""

DETECTORS = (
    *KEY_DETECTORS,
    *WORD_DETECTORS,
    *OTHER_DETECTORS,
    *(_search(kind, pattern, LONG_RUN, before=before) for kind, pattern, before in _UNPREFIXED),
)


# Secrets recognised by their name, in text: `password=…`, `"api_key": "…"`, `Authorization: …`.
# Finds pairs in prose, code, headers, query strings, JSON, and JSON inside JSON strings (any number
# of backslashes), in linear time: every name searches a bounded distance to its left, and every
# checked value is skipped. Prose about passwords is left unchanged: a value after a bare name must
# look like a value.


# Every name `secret_kind` recognises ends in (the plural of) one of these; each is one fast scan.
STEMS = tuple(
    b"pass pwd secret key token credential authorization cookie connection signature".split()
)

# The rest of the name, an optional closing quote, then `:` or `=` (or `=>`, `:=`).
_AFTER_STEM = rb"[a-z0-9_-]{0,16}+([\\]{0,15}+[\"'`])?+\]?+[ \t]{0,8}+(?:=>|:=|[:=]|%3d)(?![:=])"
_SEARCHES = {stem: re.compile(stem + _AFTER_STEM) for stem in STEMS}
_NAME = re.compile(r"[A-Za-z0-9_.\-]+\Z")
_NAME_END = re.compile(rb"[A-Za-z0-9_-]{0,16}+")

_OPENING = re.compile(rb"[ \t]{0,8}+([\\]{0,15}+)([\"'`])")
_BARE = re.compile(rb"[ \t]{0,8}+([^\s\"'`,;&<>(){}\[\]|\\]++)")
_SCHEME = re.compile(
    rb"[ \t]*+(?:(?:bearer|basic|token|digest|apikey|negotiate)[ \t]+"
    # Any other scheme, before what no prose has: `GenieKey 3f2a…`, `AWS4-HMAC-SHA256 Credential=…`.
    rb"|[a-z][a-z0-9-]{1,30}+[ \t]+(?=[^\s\"'=]{0,200}[0-9=]))",
    re.IGNORECASE,
)
_AUTHORIZATION_PARAMETERS = re.compile(
    rb"[A-Za-z_-]{1,40}+=(?:[\\]?\"[^\"\r\n]{0,4096}+\"|[^\s,\"']{1,4096}+)"
    rb"(?:,[ \t]*+[A-Za-z_-]{1,40}+=(?:[\\]?\"[^\"\r\n]{0,4096}+\"|[^\s,\"']{1,4096}+))*+"
)
_ESCAPED_VALUE = re.compile(rb"(?:[A-Za-z0-9_.~+/-]|%(?!26|23)[0-9A-Fa-f]{2})++")
_COOKIES = re.compile(rb"[ \t]{0,8}+([^\r\n\"'`\\]{1,8192}+)")
_LINE_END = re.compile(rb"[ \t]*+(?:\r?\n|\Z|#)")
_LINE_START = re.compile(rb"[\n\r][ \t]*(?:- |export |set |\* )?[ \t]*\Z")

# An unclosed quote means truncated text; the value is then parsed like a bare one.
_MAX_QUOTED = 4096

_NOT_A_VALUE = re.compile(
    rb"(?i)(?:none|null|nil|undefined|true|false|str|string|int|bool|any|bytes|optional|required"
    rb"|secretstr|os\.environ.*|os\.getenv.*|getenv.*|process\.env.*|self\..*|config\..*"
    rb"|convertto-.*|settings\..*|args\..*|env\..*|\$.*|%.*|\*+|\.+|x+|-+|_+|<.*|your[-_ ].*"
    rb"|\[redacted:.*)\Z"
)
_VALUE_SIGNS = re.compile(rb"[0-9!@#$%^*+=/~]|[a-z][A-Z]")
_AFTER_A_TEXT = tuple(bytes([sign]) for sign in b"])},;:+ \t\\")
_DIGITS = re.compile(rb"[0-9][0-9.,]*")
_SOME_LETTERS = re.compile(rb"[A-Za-z0-9][^A-Za-z0-9]*+[A-Za-z0-9][^A-Za-z0-9]*+[A-Za-z0-9]")
_RANDOM = re.compile(rb"(?=[^0-9]*+[0-9])(?=[^A-Za-z]*+[A-Za-z])[^\s]{12,}\Z")


class _Value(NamedTuple):
    start: int
    end: int
    quoted: bool


def pairs(data: bytes, low: bytes) -> Iterator[SecretMatch]:
    """Yield secret values after secret names; `low` is `data` in lower case."""
    for stem, search in _SEARCHES.items():
        if stem not in low:
            continue
        position = 0
        while found := search.search(low, position):
            position = found.end()
            kind = _kind_at(data, found.start())
            if kind is None:
                continue
            escaped = found.group().endswith(b"%3d")
            value = (
                _in_escaped_url(data, found.end())
                if escaped
                else _value_at(data, found.end(), kind)
            )
            if value is None:
                continue
            # Skipping the value makes the search linear even when it contains names.
            position = max(position, value.end)
            if _is_secret(data, found, value, kind):
                kind = "token" if kind == BARE_TOKEN else kind
                # `"password": 1234`: a mark in place of a number needs the quotes of its name.
                quote = (found.group(1) or b"") if not value.quoted else b""
                yield SecretMatch(value.start, value.end, kind, quote)


def named_at(data: bytes, low: bytes, stem: bytes) -> Iterator[int]:
    """Yield positions of secret names with this stem before `:` or `=`, whatever follows."""
    for found in _SEARCHES[stem].finditer(low):
        if _kind_at(data, found.start()) is not None:
            yield found.start()


def _kind_at(data: bytes, stem: int) -> str | None:
    """Return the kind of the whole name around a stem."""
    end = _NAME_END.match(data, stem)
    stop = end.end() if end else stem
    left = data[max(0, stem - MAX_NAME) : stop].decode("latin-1")
    name = _NAME.search(left)
    if name is None or left.endswith("[redacted:", 0, name.start()):
        return None  # the kind of a mark is no name
    # In `%3Ftoken%3D…` the name begins after the escape.
    escaped = left[max(0, name.start() - 1) : name.start()] == "%"
    return secret_kind(name.group()[2:] if escaped else name.group())


def _in_escaped_url(data: bytes, position: int) -> _Value | None:
    """Return the value of a parameter in a URL that is itself a parameter; `%26` ends it."""
    found = _ESCAPED_VALUE.match(data, position)
    return _Value(*found.span(), False) if found else None


def _value_at(data: bytes, position: int, kind: str) -> _Value | None:
    end = None
    if opening := _OPENING.match(data, position):
        position = opening.end()
        end = _closing(data, position, opening.group(2), len(opening.group(1)))
    limit = len(data) if end is None else end
    if kind == "authorization" and (scheme := _SCHEME.match(data, position, limit)):
        position = scheme.end()
        parameters = _AUTHORIZATION_PARAMETERS.match(data, position)
        if end is None and parameters:
            return _Value(*parameters.span(), False)
    if end is not None:
        return _Value(position, end, True)
    bare = (_COOKIES if kind == "cookie" else _BARE).match(data, position)
    return _Value(*bare.span(1), False) if bare else None


def _closing(data: bytes, start: int, quote: bytes, level: int) -> int | None:
    """Return the end of a quoted value.

    A quote after `level` backslashes opens it. Inside, each backslash is written `level + 1` times,
    so the closing quote follows `level` plus an even number of those; a quote after fewer than
    `level` ends the enclosing text.
    """
    limit = min(len(data), start + _MAX_QUOTED)
    position = start
    while (found := data.find(quote, position, limit)) >= 0:
        text = data[start:found]
        behind = len(text) - len(text.rstrip(b"\\"))
        if behind < level or (behind - level) % (2 * (level + 1)) == 0:
            end = found - min(behind, level)
            return None if b"\n" in data[start:end] else end
        position = found + 1
    return None


def _is_secret(data: bytes, name: re.Match[bytes], value: _Value, kind: str) -> bool:
    text = data[value.start : value.end]
    if not text.strip() or _NOT_A_VALUE.match(text):
        return False
    if kind == BARE_TOKEN:
        return bool(_RANDOM.match(text))
    if not value.quoted and len(text) < 4 and text.isdigit():
        return False  # `Passwords: 3 failed`
    if kind != "password" and (_DIGITS.fullmatch(text) or not _SOME_LETTERS.search(text)):
        return False
    if kind == "cookie" and not name.group().endswith(b":"):
        return False  # code that handles cookies; a header has a colon
    if kind == "credential" and not (len(text) >= 8 and _VALUE_SIGNS.search(text)):
        return False  # `credentials: "include"`, `connection string: see below`
    if name.group(1):  # a quoted name: JSON, or code, where a bare word is a variable
        return value.quoted or bool(_DIGITS.fullmatch(text))
    if value.quoted:
        # In `"Enter password: "` and `["password="]` the quote ends the text around the name.
        return text[:1] not in _AFTER_A_TEXT
    if data[value.end : value.end + 1] in (b"(", b"["):
        return False  # a call or a lookup in code
    separator = name.group().rstrip(b"=>:")
    if name.group().endswith(b"=") and separator == separator.rstrip():
        # In code a variable is passed on: `api_key=api_key`, `password=db_password`.
        is_variable = secret_kind(text.decode("latin-1")) is not None
        return not is_variable or bool(_VALUE_SIGNS.search(text))
    if _VALUE_SIGNS.search(text):
        return True
    # A line of a settings file: only the name, the separator and the value.
    head = data[max(0, name.start() - MAX_NAME) : name.start()].rstrip(
        b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-\"'"
    )
    at_line_start = _LINE_START.search(b"\n" + head if len(head) < MAX_NAME else head)
    return bool(at_line_start and _LINE_END.match(data, value.end))
