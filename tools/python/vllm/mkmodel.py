"""A random Qwen2 model with real weights on disk, and a tiny tokenizer: no hub, no download.

    python mkmodel.py DIR [--size tiny|small] [--seed N]

`load_format="dummy"` would run too, but its output degenerates to one repeated token, so nothing could be told apart by
it; weights drawn with a range of 0.2 give outputs that depend on every block of the prompt.
"""

import argparse
import pathlib

SIZES = {  # hidden, layers, heads, kv heads, ffn
    "tiny": (256, 4, 4, 2, 768),  # 3.3 M parameters: 2 KiB of KV a token in bf16
    "small": (512, 8, 8, 4, 1536),  # 25.5 M parameters: 8 KiB of KV a token in bf16, 1 MiB a block of 128 tokens
}
VOCABULARY = 512


def make(folder, size="small", seed=0):
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

    folder = pathlib.Path(folder)
    if (folder / "model.safetensors").exists():
        return folder
    hidden, layers, heads, kv_heads, ffn = SIZES[size]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(["pack my box with five dozen liquor jugs, and then some more. " * 4], trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|endoftext|>", pad_token="<|endoftext|>")
    fast.chat_template = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
    fast.save_pretrained(folder)
    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=hidden,
        intermediate_size=ffn,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        max_position_embeddings=16384,
        tie_word_embeddings=False,
        initializer_range=0.2,
        eos_token_id=0,
        bos_token_id=0,
        pad_token_id=0,
        use_sliding_window=False,
    )
    Qwen2ForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    return folder


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--seed", type=int, default=0, help="another seed is another model of the same geometry")
    wish = parser.parse_args()
    print(make(wish.folder, wish.size, wish.seed))
