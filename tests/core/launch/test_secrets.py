"""Secrets are hidden wherever words are written or shown, and nothing else is."""

import pytest

from zerowiz.core.launch.secrets import hide_secrets, is_secret, quote_words, without_secrets


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--hub_token", "abc", "--lr", "1"), ("--hub_token", "***", "--lr", "1")),
        (("--hub-token=abc",), ("--hub-token=***",)),
        (("--token", "abc"), ("--token", "***")),
        (("--wandb_api_key", "abc"), ("--wandb_api_key", "***")),
        (("--run.password", "abc"), ("--run.password", "***")),
        (("--hub_token", "--lr", "1"), ("--hub_token", "--lr", "1")),
        (("positional", "hf_" + "a" * 34), ("positional", "***")),
        (("--eos_token", "</s>"), ("--eos_token", "</s>")),
        (("--max_tokens", "5"), ("--max_tokens", "5")),
        (("--tokenizer_name", "x"), ("--tokenizer_name", "x")),
        (("--wandb_key", "w"), ("--wandb_key", "***")),
        (("--text_key", "x"), ("--text_key", "x")),
        (("https://me:pass@host/x",), ("https://***@host/x",)),
        (("https://ghp_1@host/x", "ssh://git@host/x"), ("https://***@host/x", "ssh://git@host/x")),
        (("--url=ftp://me:pass@host:21",), ("--url=ftp://***@host:21",)),
        (("https://host:80/a@b", "s3://b/c"), ("https://host:80/a@b", "s3://b/c")),
        (("api_key=abc", "lr=1"), ("api_key=***", "lr=1")),
        (("+hub.token=abc", "++wandb.api_key=abc"), ("+hub.token=***", "++wandb.api_key=***")),
        (("model.tokenizer=x", "max_tokens=5"), ("model.tokenizer=x", "max_tokens=5")),
        (("data.eos_token=</s>", "text_key=x"), ("data.eos_token=</s>", "text_key=x")),
        (("token", "abc"), ("token", "abc")),
        (("--key", "x", "--monkey", "y"), ("--key", "x", "--monkey", "y")),
    ],
)
def test_passwords_are_blotted_out_and_nothing_else(
    words: tuple[str, ...], expected: tuple[str, ...]
) -> None:
    assert expected == hide_secrets(words)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--hub_token", "abc", "--lr", "1"), ("--lr", "1")),
        (("--bf16", "--url=https://me:pass@host"), ("--bf16",)),
        (("-m", "api_key=abc", "lr=1"), ("-m", "lr=1")),
    ],
)
def test_an_option_goes_with_the_secret_that_is_its_value(
    words: tuple[str, ...], expected: tuple[str, ...]
) -> None:
    assert expected == without_secrets(words)


@pytest.mark.parametrize("name", ["TOKENIZERS_PARALLELISM", "HF_TOKEN_PATH", "NCCL_KEYS_X"])
def test_a_name_that_only_looks_like_a_secret_travels(name: str) -> None:
    assert not is_secret(name)


AWS = "https://b.s3.amazonaws.com/d.tar?X-Amz-Credential=AKIA%2F1&X-Amz-Signature=9f8&part=1"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--header", "Authorization: Bearer abc"), ("--header", "Authorization: ***")),
        (("--header=X-Api-Key: abc",), ("--header=X-Api-Key: ***",)),
        (("--say", "Bearer abcdef12345678"), ("--say", "Bearer ***")),
        (("--extra", '{"token": "a b c d", "lr": 1}'), ("--extra", '{"token": ***, "lr": 1}')),
        (("--kw", "{'wandb': {'api_key': 'xxxxxx'}}"), ("--kw", "{'wandb': {'api_key': ***}}")),
        (
            ("--url", AWS),
            ("--url", AWS.replace("AKIA%2F1", "***").replace("9f8", "***")),
        ),
        (("https://h/a?sig=abc#b",), ("https://h/a?sig=***#b",)),
        (("--at", "host=db password=hunter2"), ("--at", "host=db password=***")),
        (("--at", "Name=a;AccountKey=abcdef==;End=x"), ("--at", "Name=a;AccountKey=***;End=x")),
        (("--kw", "{lr: 1, password: hunter2}"), ("--kw", "{lr: 1, password: ***}")),
        (("--smtp_pass", "x", "--kaggle_key", "y"), ("--smtp_pass", "***", "--kaggle_key", "***")),
        (("--encryption_key=x",), ("--encryption_key=***",)),
        (
            ("--pwd", "x", "--auth=me:x", "--user", "me:x"),
            ("--pwd", "***", "--auth=***", "--user", "***"),
        ),
        (("--openaiApiKey=x", "--api.key", "y"), ("--openaiApiKey=***", "--api.key", "***")),
        (
            ("--gitlab_token", "x", "--hf_read_token", "y"),
            ("--gitlab_token", "***", "--hf_read_token", "***"),
        ),
        (("--at", "Server=db;Uid=me;Pwd=hunter2;"), ("--at", "Server=db;Uid=me;Pwd=***;")),
        (("--kw", "dict(api_key='hunter2')"), ("--kw", "dict(api_key='***')")),
        (
            ("https://h/v1?key=AbCdEfGhIjKlMnO1&n=3", "https://h/a.json?auth=abc"),
            ("https://h/v1?key=***&n=3", "https://h/a.json?auth=***"),
        ),
        (
            ("--license_key", "ABCD-EFGH", "x.licence-key=a1b2"),
            ("--license_key", "***", "x.licence-key=***"),
        ),
        (
            ("--licensekey=" + "a" * 32, "--license-token=x"),
            ("--licensekey=***", "--license-token=***"),
        ),
        (("--subscription_key", "x"), ("--subscription_key", "***")),
        (("--passphrase", "x", "--pat", "y"), ("--passphrase", "***", "--pat", "***")),
        (("--dsn=u:p@h", "--cookie", "sid=1"), ("--dsn=***", "--cookie", "***")),
        (("WANDB_API_KEY=x", "DB_PASSWORD=y"), ("WANDB_API_KEY=***", "DB_PASSWORD=***")),
        (("--note", "sk-ant-api03-" + "a" * 20), ("--note", "***")),
        (("--note", "ghp_" + "a" * 36), ("--note", "***")),
        (
            ("--at", "https://hooks.slack.com/services/T0/B0/x"),
            ("--at", "https://hooks.slack.com/services/***"),
        ),
    ],
)
def test_a_secret_is_known_by_its_name_its_issuer_or_its_place(
    words: tuple[str, ...], expected: tuple[str, ...]
) -> None:
    assert expected == hide_secrets(words)


@pytest.mark.parametrize(
    "words",
    [
        ("--private_key", "~/.ssh/id.pem", "--credentials=conf/gcp.json", "--cookies", "c.txt"),
        ("--sig", "0.5", "--pattern", "a", "--signature", "x -> y", "--pwd", "/data"),
        ("--user_token", "<|user|>", "--bot_token", "<|bot|>", "--id_token", "7"),
        ("--auth", "basic", "--user", "alice", "--user=1000:1000", "--pass", "2", "--sas=off"),
        ("https://h/a?key=text", "https://h/a?code=200", "--extra", '{"pwd": "/work/space"}'),
        (
            "--token_path",
            "/run/hf",
            "--license_key",
            "mit",
            "--bot_token",
            "<bot>",
            "--user",
            "<me:u>",
        ),
        ("--license_key", "apache-2.0", "--license_key=cc-by-sa-4.0", "--licenses", "mit"),
        (
            "--license_key",
            "keys/lic.txt",
            "license_key=license",
            "--serial",
            "A1",
            "--product_key",
            "7",
        ),
        ("--license_file", "a.lic", "--subscription", "gold", "--subscription_id", "7"),
        ("--prompt", "basic understanding of the bearer certificates"),
        ("--model", "org/sk-learn-random-forest-classifier", "--name", "r8_alpha16_dropout_0"),
        ("--revision", "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b", "https://h/a?revision=main"),
        ("--use_auth_token", "True", "--api_key", "$KEY", "HF_TOKEN=${HF_TOKEN}"),
        ("--columns", '{"key": "id", "token": "word"}'),
        ("--columns", "{key: id, token: word}", "--prompt", "The password: what is it?"),
        ("--kw", "a=1;pad_token=<padding>;max_tokens=100000", "--forward_pass", "two"),
        ("--kw", '{"key": "text", "max_tokens": 5, "tokenizer": "x"}'),
    ],
)
def test_hashes_paths_and_ids_are_never_hidden(words: tuple[str, ...]) -> None:
    assert words == hide_secrets(words)


def test_a_line_to_paste_has_a_variable_where_a_secret_was() -> None:
    words = ("t.py", "--hub_token", "x y", "--dsn=u:p@h", "https://a:b@h", "--data", "a b")
    expected = [
        "t.py",
        "--hub_token",
        '"$HUB_TOKEN"',
        '--dsn="$DSN"',
        '"$SECRET"',
        "--data",
        "'a b'",
    ]
    assert expected == quote_words(words)
