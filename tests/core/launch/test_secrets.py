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


# Written by somebody who had not read this module: words, and the part that nobody may read.
OTHERS: tuple[tuple[tuple[str, ...], str], ...] = (
    (("--hf_token", "hf_QwErTyUiOpAsDfGhJkLzXcVbNmQw"), "QwErTyUiOpAsDfGh"),
    (("--hub_token=hf_aBcDeFgHiJkLmNoPqRsTuVwXyZaB",), "aBcDeFgHiJkLmNoP"),
    (("--use_auth_token", "7c2b91d0e6aa4f0c9d1e"), "7c2b91d0e6aa4f0c9d1e"),
    (("--wandb_api_key", "77f1c3b9e2d4a6508b1d3f5e7a9c0b2d4f6e8a1c"), "77f1c3b9e2d4a650"),
    (("--wandb_key=9a8b7c6d5e4f3a2b1c0d9e8f7a6b5c4d3e2f1a0b",), "9a8b7c6d5e4f3a2b"),
    (("--comet_api_key", "Zx9KpQ2mVt7LwRb4NcYs8HdJf"), "Zx9KpQ2mVt7Lw"),
    (
        ("--neptune-api-token", "eyJhcGlfYWRkcmVzcyI6Imh0dHBzOi8vYXBwLm5lcHR1bmUuYWkifQ=="),
        "eyJhcGlfYWRkcmVzcyI6",
    ),
    (("--clearml_secret_key", "mJ3nT5vX7zB9dF1hK3"), "mJ3nT5vX7zB9dF1hK3"),
    (("--openai_key", "sk-proj-Tq8mWz3nXc5vBy7kLd9f"), "Tq8mWz3nXc5vBy7k"),
    (("--judge_api_key=sk-ant-api03-Gh4jKl6pOi8uYt2rEw",), "Gh4jKl6pOi8uYt2rEw"),
    (("--mlflow_tracking_uri", "https://trainer:Winter24x@mlflow.example.com/api"), "Winter24x"),
    (("--storage=postgresql://optuna:Gr33nT3a@db.example.com:5432/studies",), "Gr33nT3a"),
    (("--redis_url", "redis://:m00nl1ght@10.0.0.4:6379/0"), "m00nl1ght"),
    (
        (
            "--train_shards",
            "https://b.s3.amazonaws.com/t.tar?X-Amz-Credential=AKIAQ7EXAMPLE&X-Amz-Signature=5c0ffee5c0ffee5c0ffee1234",
        ),
        "5c0ffee5c0ffee5c0ffee1234",
    ),
    (
        (
            "--data_url=https://acct.blob.core.windows.net/c/x.tar?sv=2022-11-02&sr=b&sig=Zm9vYmFyYmF6cXV4Cg%3D%3D",
        ),
        "Zm9vYmFyYmF6cXV4Cg",
    ),
    (
        (
            "https://storage.googleapis.com/b/o.tar?X-Goog-Expires=900&X-Goog-Signature=77aa66bb55cc44dd",
        ),
        "77aa66bb55cc44dd",
    ),
    (("--header", "Authorization: Bearer uV5wX6yZ7aB8cD9e"), "uV5wX6yZ7aB8cD9e"),
    (("--extra-headers=X-Api-Key: r4nd0mV4lueHere",), "r4nd0mV4lueHere"),
    (
        ("--tracker_init_kwargs", '{"wandb": {"entity": "lab", "api_key": "p1p2p3p4p5p6"}}'),
        "p1p2p3p4p5p6",
    ),
    (
        ("--storage_options", '{"key": "minio", "secret": "s3cr3tM1n10", "anon": false}'),
        "s3cr3tM1n10",
    ),
    (("AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMIK7MDENGbPxRfiCYzEXAMPLEKEY",), "wJalrXUtnFEMIK7MDENG"),
    (("logger.wandb.api_key=c0c1c2c3c4c5c6c7",), "c0c1c2c3c4c5c6c7"),
    (("+hub.token=hf_zZyYxXwWvVuUtTsSrRqQpPoOnNmM",), "zZyYxXwWvVuUtTsS"),
    (
        (
            "--slack_webhook",
            "https://hooks.slack.com/services/T01AB2CD3/B04EF5GH6/i7J8k9L0m1N2o3P4",
        ),
        "i7J8k9L0m1N2o3P4",
    ),
    (("--telegram_bot_token=110201543:AAHdqTcvCH1vGWJxfSeofSAs0K5",), "AAHdqTcvCH1vGWJx"),
    (("--smtp-pass", "hunter2hunter2"), "hunter2hunter2"),
    (
        (
            "--code_repo",
            "https://x-access-token:ghp_1A2b3C4d5E6f7G8h9I0j1K2l3M4n@github.com/lab/code.git",
        ),
        "1A2b3C4d5E6f7G8h",
    ),
    (
        (
            "--model_args",
            "pretrained=meta-llama/Llama-3.1-8B,token=hf_lLkKjJhHgGfFdDsSaApPoOiIuUyY",
        ),
        "lLkKjJhHgGfFdDsS",
    ),
    (("--kaggle_key", "c81e728d9d4c2f636f067f89cc14862c"), "c81e728d9d4c2f63"),
    (("--session-cookie=sid=Vx2nQ9pLk4; theme=dark",), "Vx2nQ9pLk4"),
)
KEPT = r"""
--token_type bpe
--num_tokens 300000000000
--max_tokens=4096
--max_new_tokens 512
--tokens_per_batch 524288
--token_dropout 0.1
--special_tokens <|im_start|>,<|im_end|>
--pad_token <pad>
--eos_token </s>
--bos_token=<s>
--unk_token [UNK]
--mask_token [MASK]
--image_token <image>
--image_token_id 32000
--pad_token_id=151643
--token_embedding_dim 768
--tokenizer meta-llama/Llama-3.1-8B
--tokenizer_name_or_path=Qwen/Qwen2.5-7B
--tokenizer_path /data/tok/spm.model
--add_special_tokens True
--use_fast_tokenizer
--token_merging_ratio 0.5
--visual_token_num 576
--mm_use_im_start_end False
--key_dim 64
--num_key_value_heads 8
--key_padding
--text_key text
--image_key=image
--label_key label
--input_key prompt
--output-key response
--chosen_key chosen
--rejected_key=rejected
--prompt_key messages
--train_key train
--cond_stage_key caption
--lora_target_modules q_proj,k_proj,v_proj,o_proj
--monkey_patch
--keyframe_interval 8
--hotkey f5
--primary_key id
--sort_key length
--key_bits 4
--kv_cache_key_dtype fp8
--revision 0f1e2d3c4b5a69788796a5b4c3d2e1f00f1e2d3c
--code_revision=main
--git_sha 58fe1068aabbccddeeff00112233445566778899
--commit 58fe1068
--dataset_sha256 e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855
--md5=d41d8cd98f00b204e9800998ecf8427e
--run_id 3f2c8a1b9d
--resume_id a1b2c3d4
--wandb_project llama-sft
--wandb_entity my-lab
--wandb_run_name hf_baseline_v2
--wandb_id 1x2y3z4w
--wandb_mode=offline
--wandb_dir /scratch/wandb
--report_to wandb
--hub_model_id my-lab/llama-3.1-8b-sft
--hub_strategy every_save
--hub_private_repo True
--push_to_hub
--dataset_name HuggingFaceH4/ultrachat_200k
--dataset tatsu-lab/alpaca
--dataset_url https://huggingface.co/datasets/tatsu-lab/alpaca/resolve/main/data.json
--train_data s3://bucket/c4/train-{00000..01023}.tar
--data gs://bucket/path/to/data.jsonl
--data_url https://example.com/data.tar?download=true&page=2
--mlflow_tracking_uri http://mlflow.example.com:5000
--master_addr=10.0.0.1
--tracking_uri sqlite:///mlruns.db
--init_method tcp://10.0.0.1:29500
--model_name_or_path /models/hf_llama/sk-base
--output_dir out/hf_token_classification
--task token-classification
--task_name secretary
--password_dataset rockyou
--passes 3
--num_passes=2
--bypass_eval
--compass north
--pat_len 16
--patience 5
--pattern *.safetensors
--path_to_data /data/pat/x.json
--auth_mode none
--author karpathy
--authority_weight 0.3
--credit_assignment gae
--cookiecutter plain
--sig_figs 4
--sigma 0.02
--signature_dim 128
--session_length 100
--secret_sauce_ratio 0.1
--header_rows 1
--prompt_header Below is an instruction that describes a task.
--config_overrides {"n_embd":1024,"vocab_key":"text","token_type":"bpe"}
"""


@pytest.mark.parametrize(("words", "secret"), OTHERS)
def test_what_somebody_else_holds_for_a_secret_is_hidden(
    words: tuple[str, ...], secret: str
) -> None:
    shown = [*hide_secrets(words), *quote_words(words), *without_secrets(words)]
    assert secret not in " ".join(shown)


@pytest.mark.parametrize("line", KEPT.strip().splitlines())
def test_what_somebody_else_holds_for_none_stays(line: str) -> None:
    words = tuple(line.split(" ", 1))
    assert words == hide_secrets(words)


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
    # A token of base64 ends with the sign that stands behind a name.
    token = ("--neptune_token", "eyJhcGk==")
    expected = [
        "t.py",
        "--hub_token",
        '"$HUB_TOKEN"',
        '--dsn="$DSN"',
        '"$SECRET"',
        "--data",
        "'a b'",
        "--neptune_token",
        '"$NEPTUNE_TOKEN"',
    ]
    assert expected == quote_words((*words, *token))
