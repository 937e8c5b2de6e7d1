"""What must not enter a record."""

from __future__ import annotations

import json
import re
import shlex
import time
from functools import partial
from itertools import repeat
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from dsv.values import secrets
from dsv.values.secrets import HIDDEN, Masker, hide_env_values, hide_in_urls, is_secret_name
from tests.exhaustive import some

S = "s3cr3t-VALUE"


@pytest.mark.parametrize(
    "name",
    ["token", "HF_TOKEN", "hf-token", "apiKey", "API_KEY", "aws_secret_access_key", "dbPassword", "DB_PASS", "passwd",
     "Authorization", "client.secret", "AWS_SESSION_TOKEN", "private-key", "GITHUB_PAT", "encryptionKey", "APIKey",
     "PGPASSWORD", "SSHPASS", "SMTPPASS", "MYSQL_PWD", "RSYNC_PASSWORD", "dbpassword", "DBpassword", "gpgpassphrase",
     "clientsecret", "GITHUBTOKEN", "authtoken", "accesstoken", "apitoken", "HFToken", "id_token", "ID_TOKEN",
     "idToken", "idtoken", "KAGGLE_KEY", "OPENAI_KEY", "OPENAIAPIKEY", "AZURE_STORAGE_CONNECTION_STRING",
     "connectionString", "SLACK_WEBHOOK_URL", "SENTRY_DSN"],
)  # fmt: skip
def test_names_of_secrets(name: str) -> None:
    assert is_secret_name(name)


@pytest.mark.parametrize(
    "name",
    ["lr", "key", "keys", "author", "tokenizer", "max_tokens", "pad_token", "eos_token_id", "passes", "compass",
     "secretary", "keyboard", "monkey", "primary_key", "path", "pattern", "num_tokens_per_batch",
     "token_id", "eos_id_token", "padtoken", "numtokens", "tokens", "num_tokens", "TOKENIZER_PATH",
     "TOKENIZERS_PARALLELISM", "COMPASS", "bypass", "cache_bypass", "highpass", "passthrough",
     "string", "connection", "url", "PWD", "OLDPWD"],
)  # fmt: skip
def test_names_of_nothing_secret(name: str) -> None:
    assert not is_secret_name(name)


@pytest.mark.parametrize(
    "argv",
    [
        ["train", "--token", S],
        ["train", f"--token={S}"],
        ["train", f"--api-key={S} {S}"],
        ["train", "-password", S],
        ["env", f"DB_PASSWORD={S}", "train"],
        ["sh", "-c", f"export HF_TOKEN={S}; python train.py --secret '{S}' && echo"],
        [
            "sh",
            "-c",
            f'curl -H "Authorization: Bearer {S}" -H "X-Api-Key: {S}" http://x/?access_token={S}&a=b',
        ],
        ["train", f'{{"password": "{S}", "lr": 1}}'],
        ["git", "clone", f"https://user:{S}@example.org/x.git"],
        ["train", f"postgresql://user:{S}@host/db"],
        ["train", "--header", f"Authorization: Token {S}"],
        ["sh", "-c", f'DB_PASSWORD="{S}\\" {S}" run'],
        ["sh", "-c", f"DB_PASSWORD='it\\'s {S}' run"],
        ["sh", "-c", f'run --password "a\\\\\\" {S}"'],
        ["sh", "-c", f"DB_PASSWORD=a\\ {S} run"],
        ["sh", "-c", f'DB_PASSWORD="a {S}'],
        ["env", f"PGPASSWORD={S}", "psql"],
        ["curl", "-u", f"user:{S}", "http://host/"],
        ["curl", f"--user=user:{S}"],
        ["curl", f"--user=:{S}"],
        ["curl", "-u", f"1000:{S}"],
        ["tool", f"--user-token: {S}"],
        ["sh", "-c", f"curl -u user:{S} http://host/"],
        ["sh", "-c", f"curl --proxy-user 'user:{S}' http://host/"],
        ["train", "--wandb-key", S],
        ["train", f"--wandb_key={S}"],
        ["sh", "-c", f"wandb login --wandb-key {S}"],
        ["train", f"-p{S}"],
        ["mysqldump", "-u", "ada", f"-p{S}"],
        ["sh", "-c", f"mysql -uada -p'{S}' x"],
        ["sh", "-c", f"sshpass -p{S} ssh host"],
        ["train", "--other-key", "0123456789abcdef" + S],
        ["train", "--wandb_key=0123456789abcdef" + S],
        ["train", f"http://user:{S}@host/path"],
        ["train", f"s3://AKIAX:{S}@bucket/prefix"],
        ["train", f"https://host/x?X-Amz-Expires=60&X-Amz-Signature={S}"],
        ["train", f"https://host/x?sv=1&sig={S}"],
        ["train", f"sk-proj-{S}"],
        ["train", "-----BEGIN RSA PRIVATE KEY-----\ns3cr3t-VALUE\n-----END RSA PRIVATE KEY-----"],
    ],
)
def test_secrets_in_commands_are_hidden(argv: list[str]) -> None:
    kept = Masker().argv(argv)
    assert len(kept) == len(argv)
    assert S not in " ".join(kept) and HIDDEN in " ".join(kept)
    assert kept[0] == argv[0]


@pytest.mark.parametrize(
    "argv",
    [
        [
            "python",
            "train.py",
            "--lr",
            "0.1",
            "--max_tokens",
            "512",
            "--tokenizer=bert",
            "author=x",
            "key=value",
            "num_tokens=512",
            "TOKENIZER_PATH=/data/tokenizer",
        ],
        ["sh", "-c", "for i in 1 2; do echo $i; done > /out/log 2>&1"],
        ["python", "-c", "import torch; print(torch.__version__)"],
        ["train", "--auth", "--lr=1"],
        [
            "python",
            "-u",
            "train.py",
            "--image-key",
            "pixel_values",
            "--label_key=labels_of_the_second_reader",
        ],
        [
            "docker",
            "run",
            "-u",
            "1000:1000",
            "--user",
            "0:0",
            "-p8080:80",
            "-p8080:80/tcp",
            "-p127.0.0.1:80:80",
        ],
        [
            "sh",
            "-c",
            "mkdir -pv /x && cp -pr a b && find . -print0 -path x && make -p4 -plr=0.01 -p./Some/Path1",
        ],
        [
            "train",
            "http://host:8080/path?page=2&key=image",
            "s3://bucket/key",
            "2026-11-20T13:21:45",
            "a@b.c",
        ],
    ],
)
def test_all_else_is_kept(argv: list[str]) -> None:
    assert Masker().argv(argv) == tuple(argv)


@given(st.lists(st.text(max_size=30), max_size=6))
def test_masking_is_total_and_settled(argv: list[str]) -> None:
    once = Masker().argv(argv)
    assert len(once) == len(argv)
    assert all(HIDDEN in two or two == one for one, two in zip(once, Masker().argv(once), strict=True))


def test_what_the_job_was_given_is_hidden_wherever_it_turns_up() -> None:
    masker = Masker.of(
        {"ANY": "swordfish-9", "MODE": "fast", "N": "123456", "PIN_TOKEN": "abcd"},
        {"AWS_SECRET_ACCESS_KEY": S},
    )
    assert masker.argv(["x", "swordfish-9", f"a{S}b", "fast", "123456", "abcd"]) == (
        "x", HIDDEN, f"a{HIDDEN}b", "fast", "123456", HIDDEN,
    )  # fmt: skip
    assert masker.data(b"key swordfish-9\n") == b"key ***\n"
    assert masker.value({"a": ["swordfish-9", 1, None], S: True}) == {"a": [HIDDEN, 1, None], HIDDEN: True}
    assert masker.by_name.value({"a": "swordfish-9", "b": S}) == {"a": "swordfish-9", "b": HIDDEN}
    assert "swordfish" not in repr(masker)


def test_the_current_folder_is_no_secret() -> None:
    assert Masker.of({}, {"PWD": "/home/ada/work", "OLDPWD": "/home/ada"}) == Masker()


@given(st.text(st.characters(), max_size=30), st.text(st.characters(), min_size=8, max_size=12))
def test_any_string_can_be_masked(text: str, known: str) -> None:
    """Also what is no Unicode, which JSON can hold."""
    assume(not known.isdecimal() and known.lower() not in text.lower())
    masker = Masker.of({}, {"A_TOKEN": known})
    for whole in (text, text + known, "\ud800" + known, known + "\udcff\ud800"):
        assert masker.value([{whole: None}, whole]) == [{masker.text(whole): None}, masker.text(whole)]
        assert masker.argv(["train", whole])[0] == "train"
        if masker.known:
            assert known not in masker.text(whole) or known in HIDDEN
    assert masker.data(b"x") == b"x" and masker.longest >= len(known) * bool(masker.known)


def test_a_string_that_is_no_unicode() -> None:
    masker = Masker.of({}, {"A_TOKEN": "abc\ud800", "B_TOKEN": "abc\udcff"})
    assert masker.value("\ud800 abc\ud800 abc\udcff") == f"\ud800 {HIDDEN} {HIDDEN}"
    assert masker.data(b"abc\xff abc") == HIDDEN.encode() + b" abc"
    assert masker.text("gl\udcfcck ghp_" + "x" * 36) == f"gl\udcfcck {HIDDEN}"


def test_one_secret_inside_another() -> None:
    masker = Masker.of({"A_TOKEN": "abcd", "B_TOKEN": "abcdefgh"}, {})
    assert masker.text("abcdefgh abcd") == f"{HIDDEN} {HIDDEN}"
    masker = Masker.of({"A_TOKEN": "a", "B_TOKEN": "a-b", "C_TOKEN": "a-b"}, {})
    assert masker.text("a_token: a, b_token: a-b") == f"a_token: {HIDDEN}, b_token: {HIDDEN}"


def test_values_of_engine_variables_are_never_kept() -> None:
    given = ["-e", "A=b", "--env=X=y=z", "-eQ=1", "-e=R=2", "--env", "NAME", "--cpus=2", "-e"]
    kept = (
        "-e",
        f"A={HIDDEN}",
        f"--env=X={HIDDEN}",
        f"-eQ={HIDDEN}",
        f"-e=R={HIDDEN}",
        "--env",
        "NAME",
        "--cpus=2",
        "-e",
    )
    variables = {"A": "b", "X": "y=z", "Q": "1", "R": "2"}
    assert hide_env_values(given) == (kept, variables)


_PLAIN = st.text("abX9_./:=-é\\", min_size=1, max_size=8).filter(
    lambda word: not word.endswith(("\\", "=", ":"))
)
_VALUES = st.text("sS3$#é ;|&,)\n", min_size=1, max_size=8)


def _said(value: str, quote: str) -> str:
    """As a shell script has it, in these quotes or in none."""
    if quote:
        return quote + value.replace("\\", "\\\\").replace(quote, f"\\{quote}") + quote
    return "".join(f"\\{c}" if c in " ;|&,)\n\"'" else c for c in value)


@given(
    st.lists(
        st.one_of(
            _PLAIN,
            st.tuples(
                st.sampled_from(["TOKEN=", "x?api_key=", "9_db-password: ", "--secret ", "a:SSHPASS="]),
                _VALUES | _VALUES.map(lambda value: f"{value}'\"{value}"),
                st.sampled_from(["", "'", '"']),
            ),
        ),
        max_size=6,
    )
)
def test_values_of_secret_names_are_hidden_and_nothing_else(parts: list[str | tuple[str, str, str]]) -> None:
    script, expected = [], []
    for part in parts:
        if isinstance(part, str):
            script.append(part)
            expected.append(part)
        else:
            name, value, quote = part
            script.append(name + _said(value, quote))
            expected.append(name + quote + HIDDEN + quote)
    assert Masker().argv(["sh", "-c", " ; ".join(script)])[2] == " ; ".join(expected)


@pytest.mark.parametrize(
    "piece",
    [
        "a", "-a", "--a", "a-", "a.", "-", "1", "_", "a ", "-a ", "a=", "a=a:", "a='", 'b="', "a=\\", "token=",
        "token='", "token x", "--token ", "\\", "'", " ", "eyJ-", "eyJabcdefghij.", "-----BEGIN ", "-----END A", "://a:",
        "bearer ", "bearer  ", "sk-", "ghp_", "key=", "a_key=a1", "-u a:", "-u ", "?a=", "&sig=", "sig=", "://a1",
        "AIza",
    ],
)  # fmt: skip
@pytest.mark.parametrize(
    "before", some(["", "token=", 'token="', "eyJ.eyJ", "-----BEGIN PRIVATE KEY-----"], 4)
)
def test_a_long_argument_takes_no_longer_than_its_length(before: str, piece: str) -> None:
    """Ten times the length, ten times the work: it would be a hundred times if the rest were read from each name."""

    def seconds(length: int) -> float:
        argv = ["sh", "-c", before + piece * (length // len(piece))]
        best = float("inf")
        for _ in repeat(None, 3):
            began = time.thread_time()
            Masker().argv(argv)
            best = min(best, time.thread_time() - began)
        return best

    short = max(seconds(1000), 1e-5)
    assert any(seconds(10_000) <= 40 * short for _ in repeat(None, 3))


@pytest.mark.parametrize(
    "text",
    [
        "https://b.s3.amazonaws.com/k?X-Amz-Credential=AKIA%2F20261120&X-Amz-Signature=0123456789abcdef",
        "DefaultEndpointsProtocol=https;AccountKey=0123456789abcdef==;",
        "sig=0123456789abcdef%3D",
        "sk-proj-0123456789abcdef",
        "sk-ant-0123456789abcdef",
        "AIzaSy0123456789abcdef0123456789abcdef012",
        "glpat-0123456789abcdef0123",
        "https://0123456789abcdef01234567@sentry.example.org/1",
        "token:eyJ0123456789ab.eyJ0123456789ab.0123456789ab",
        "s3://AKIAX:abcdefghij/bcdefghij+bcdefghij0123456789@bucket/prefix",
    ],
)
def test_what_can_be_nothing_else_is_hidden_in_any_text(text: str) -> None:
    shown = Masker().text(f"before {text} after")
    assert "0123456789ab" not in shown and "abcdefghij" not in shown
    assert shown.startswith("before ") and shown.endswith(" after") and HIDDEN in shown
    assert Masker().data(f"before {text} after".encode()) == shown.encode()


def test_a_short_password_of_a_program_that_takes_one_is_hidden_everywhere() -> None:
    masker = Masker.of({}, {}, ["mysql", "-psesame", "--wandb-key", "swordfish"])
    assert masker.argv(["mysql", "-psesame", "x"]) == ("mysql", "-p***", "x")
    assert masker.text("sesame sesames swordfishes") == "*** sesames ***es"


def test_a_value_hidden_in_the_command_is_hidden_everywhere() -> None:
    command = [
        "train", "--token", "swordfish-1", "--db-password=swordfish-2", "-u", "ada:swordfish-3", "API_KEY=swordfish-4",
        "-H", "Authorization: Bearer swordfish-5", "postgresql://ada:sword%66ish-6@host/db", "sh", "-c",
        "export PASSWORD='swordfish-7'; run --secret \"sword\\\"fish-8\"",
    ]  # fmt: skip
    masker = Masker.of({}, {}, command)
    printed = "Namespace(token='swordfish-1') 2:swordfish-2 3swordfish-3x swordfish-4 swordfish-5 swordfish-6"
    shown = masker.text(printed + ' sword%66ish-6 swordfish-7 sword"fish-8')
    assert "sword" not in shown
    assert "fish" not in masker.text(json.dumps('sword"fish-8')) and shown.count(HIDDEN) == 9
    assert masker.value({"a": ["swordfish-1"], "token": "else"}) == {"a": [HIDDEN], "token": HIDDEN}


@pytest.mark.parametrize(
    "secret", ["--password=hunter22", "--password hunter22", "-u bob:hunter22", "-phunter22"]
)
def test_an_option_behind_one_without_a_value_is_not_its_value(secret: str) -> None:
    command = ["sh", "-c", f"tool --use-auth {secret} --lr=1"]
    masker = Masker.of({}, {}, command)
    assert "hunter22" not in " ".join(masker.argv(command))
    assert masker.text("refused: hunter22") == "refused: ***"


def test_what_is_known_is_hidden_as_programs_write_it() -> None:
    value = 'it\'s "a" pass\\word & é'
    masker = Masker.of({}, {"DB_PASSWORD": value})
    written_by = (json.dumps, partial(json.dumps, ensure_ascii=False), repr, quote, quote_plus, shlex.quote)
    for written in (write(value) for write in written_by):
        assert "word" not in masker.text(f"x{written}y"), written


def test_how_far_a_value_is_looked_for_depends_on_its_length() -> None:
    masker = Masker.of(
        {}, {}, ["x", "--token", "test", "--pin-secret", "ab", "--password", "271828", "--auth", "true"]
    )
    assert masker.text("test 'test' latest test_acc") == "*** '***' latest test_acc"
    assert masker.text("password\\ntest") == "password\\n***"
    assert (
        masker.text("Namespace(pin_secret='ab', b='ab') ab pin-secret: ab")
        == "Namespace(pin_secret='***', b='ab') ab pin-secret: ***"
    )
    assert masker.text("271828 2718281 0.271828 271828.") == "*** 2718281 0.271828 ***."
    assert masker.text("auth true") == "auth true"
    assert masker.value({"loss": 271828, "x": 27, "ok": True}) == {"loss": HIDDEN, "x": 27, "ok": True}
    assert masker.value({"test": 1, "test_acc": 0.5}) == {HIDDEN: 1, "test_acc": 0.5}


def test_parameters_are_hidden_by_their_names() -> None:
    params = {
        "hf_token": "swordfish-1",
        "deep": [{"password": "swordfish-2"}],
        "lr": 0.1,
        "max_token": "many",
    }
    masker = Masker.of({}, {}, (), params)
    shown = {"hf_token": HIDDEN, "deep": [{"password": HIDDEN}], "lr": 0.1, "max_token": "many"}
    assert masker.by_name.value(params) == shown
    assert masker.text("swordfish-1 swordfish-2 many") == "*** *** many"


def test_a_name_stays_what_it_is_unless_a_long_secret_is_in_it() -> None:
    masker = Masker.of({"DB_PASSWORD": "admin", "API_TOKEN": "swordfish-1", "ROOT": "/home/admin"}, {})
    assert masker.name("/home/admin/code") == "/home/admin/code"
    assert masker.name("/home/swordfish-1/code") == f"/home/{HIDDEN}/code"


def test_passwords_in_urls_of_messages_are_hidden() -> None:
    assert (
        hide_in_urls("http://user:hunter2@host/x is not a store") == f"http://{HIDDEN}@host/x is not a store"
    )
    assert hide_in_urls("a token=hunter2 stays") == "a token=hunter2 stays"
    assert hide_in_urls("http://host:80/a@b") == "http://host:80/a@b"


JWT = "eyJhbGciOiJSUzI1NiJ9.eyJ" + "S3CR3T" * 60 + ".sig"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        (f"http://oauth2:{JWT}@host/f", "http://***@host/f"),
        (f"http://{JWT}@host/f", "http://***@host/f"),
        ("http://user:a@b@host/f", "http://***@host/f"),
        ("http://user@corp.example:a@host:80/f", "http://***@host:80/f"),
        ("http://user:it's@host/f", "http://***@host/f"),
        ('http://user:a"b@host/f', "http://***@host/f"),
        ("dvc+https://user:a@b@host/x.git@main", "dvc+https://***@host/x.git@main"),
        (
            "https://host/f?X-Amz-Signature=a&x=1#access_token=b",
            "https://host/f?X-Amz-Signature=***&x=1#access_token=***",
        ),
        ("https://host/f?sig=a%2Fb&se=1", "https://host/f?sig=***&se=1"),
        ("https://host/f?_token=a", "https://host/f?_token=***"),
        ("https://host/f?a=1;token=b&x=1", "https://host/f?a=1;token=***&x=1"),
        ("https://host/f?auth%5Ftoken=b", "https://host/f?auth%5Ftoken=***"),
        ("https://host/f?access_token[]=b", "https://host/f?access_token[]=***"),
        ("https://host/f?x=1&amp;token=b", "https://host/f?x=1&amp;token=***"),
        ("https://host/f?password=a'b<c", "https://host/f?password=***"),
        ("https://user:a/b@host/f", "https://***@host/f"),
        ("https://user:a b@host/f", "https://***@host/f"),
        ("https://user:a b/c d@host/f", "https://***@host/f"),
        ("//user:a@host/f", "//***@host/f"),
        ("s3://KEY:a/b@bucket/f", "s3://***@bucket/f"),
        ("s3://arn:aws:s3:eu:1:accesspoint/x/a@b", "s3://arn:aws:s3:eu:1:accesspoint/x/a@b"),
        ("https://host:80 asks ann@example.org", "https://host:80 asks ann@example.org"),
        ("//host/a:b@c", "//host/a:b@c"),
        ("http://host:80/x@y", "http://host:80/x@y"),
        ("ssh://git@host/x", "ssh://git@host/x"),
        ("ssh://ann@host/x", "ssh://ann@host/x"),
        ("https://git@host/x", "https://git@host/x"),
        ("https://tok3n@host/x", "https://***@host/x"),
        ("git+https://t.k-n@host", "git+https://***@host"),
        ("https://host?to=ann@example.org", "https://host?to=ann@example.org"),
        ("s3://bucket@v1 and https://host, ann@b", "s3://bucket@v1 and https://host, ann@b"),
        ("abfs://box@account.example/x", "abfs://box@account.example/x"),
        ("s3://bucket/a@b:c", "s3://bucket/a@b:c"),
        ("hf://datasets/team/pets@v1", "hf://datasets/team/pets@v1"),
        ("dsv://pets@main:img/b@2x.png", "dsv://pets@main:img/b@2x.png"),
    ],
)
def test_a_url_is_shown_without_its_secrets_only(url: str, shown: str) -> None:
    assert hide_in_urls(url) == shown
    assert hide_in_urls(f"{url} is not there") == f"{shown} is not there"


_SHAPED = (
    "AKIA0123456789ABCDEF", "ghp_" + "a1" * 18, "github_pat_" + "a1" * 11, "glpat-" + "a1" * 10, "hf_" + "a1" * 15,
    "xoxb-0123456789", "sk-proj-0123456789", "sk-" + "a1" * 10, "AIza" + "a1" * 15, "ya29." + "a1" * 10,
    "rk_live_" + "a1" * 8, "sk_test_" + "a1" * 8, "npm_" + "a1" * 12, "dckr_pat_" + "a1" * 12, "pypi-" + "a1" * 12,
    "BEARER\n\n0123456789abcdef", "Basic 0123456789abcdef", "x-goog-signature=0123456789abcdef",
    "SIG=0123456789abcdef", "accountkey=0123456789abcdef", "SharedAccessKey=0123456789abcdef",
    "eyJ0123456789.eyJ0123456789.x", "s3://key:secret@bucket/x", "-----BEGIN PRIVATE KEY-----\nx\n",
    "-----END PRIVATE KEY-----",
)  # fmt: skip


@given(st.lists(st.sampled_from((*_SHAPED, "\n", "\n", " ", "bearer", "a=1", "word")), max_size=20))
def test_a_long_log_read_in_pieces_loses_the_same_secrets_as_one_read_whole(parts: list[str]) -> None:
    text = "".join(parts)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(secrets, "_PIECES", re.compile(r"(?s:.{4})[^\n]*\n|(?s:.+)"))
        assert secrets._hide_shapes(text) == secrets._SHAPES.sub(
            lambda found: (found["head"] or "") + HIDDEN, text
        )


@pytest.mark.parametrize("secret", _SHAPED[:-1])
def test_every_shape_is_noticed(secret: str) -> None:
    """By one of the words that show which pieces are looked at."""
    assert HIDDEN in Masker().text(f"line\n{secret}\nline")
