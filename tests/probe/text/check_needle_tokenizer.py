"""The folders of the needle models: one tokenizer in each, which loads from the folder and from a copy of it, in
`transformers` and here.

Usage: check_needle_tokenizer.py <text_oracle_client>; exit 77 if a package is missing.
"""

import json
import os
import pathlib
import shutil
import sys
import tempfile

sys.dont_write_bytecode = True  # leaves no __pycache__ in a model folder
os.environ["HF_HUB_OFFLINE"] = "1"  # a file that is missing is an error here, not a question to the network
sys.path.insert(0, str(pathlib.Path(__file__).parents[3] / "models" / "needle"))

try:
    import make_tokenizer
    from transformers import AutoTokenizer
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

from oracle_client import OracleClient


def main():
    prompts = make_tokenizer.MODELS / "needle" / "demo.jsonl"
    texts = [json.loads(line)["prompt"] for line in prompts.read_text().splitlines()]
    made, files = make_tokenizer.make(), make_tokenizer.files()
    wanted = [encoding.ids for encoding in made.encode_batch(texts)]
    client = OracleClient(sys.argv[1])
    failures = []
    with tempfile.TemporaryDirectory() as root:
        for number, folder in enumerate(make_tokenizer.FOLDERS):
            for name, text in files.items():
                if (folder / name).read_text() != text:
                    failures.append(f"{folder / name}: expected what models/needle/make_tokenizer.py writes")
            # As `cp -r` copies: a link stays a link, so one that leads out of the folder breaks here.
            copy = shutil.copytree(folder, pathlib.Path(root) / str(number), symlinks=True)
            for place in (folder, copy):
                tokenizer = AutoTokenizer.from_pretrained(place)
                if tokenizer(texts).input_ids != wanted:
                    failures.append(f"{place}: transformers gives other tokens than the tokenizer that was made")
                if tokenizer.mask_token_id != made.token_to_id("<|MASK|>"):
                    failures.append(f"{place}: expected mask id {made.token_to_id('<|MASK|>')}, got {tokenizer.mask_token_id}")
                path = str(place / "tokenizer.json")
                if client.ask(tokenizer=path, texts=texts, special=False, ids=[]).get("ids") != wanted:
                    failures.append(f"{place}: Blockscope gives other tokens than the tokenizer that was made")
    client.close()
    print(*failures, f"{len(make_tokenizer.FOLDERS)} folders, {len(texts)} texts, {len(failures)} differences", sep="\n")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
