"""The peer: DeepSeek V4 in Hugging Face transformers on the CPU, chunked prefill and cached decode.

Usage: transformers_peer.py needle --model-dir DIR | large  [--dtype f32|bf16] [--threads N] [--lengths 1024]
       [--chunk 512] [--batches 1,4,16] [--context 1024] [--steps 16]
Prints one JSON line per measurement: {"test", "tokens" | "batch", "tok_s"} (median of three repetitions).
`grouped_mm` experts are the fastest it has here; attention is eager, the only form V4 has on a CPU.
"""

import argparse
import json
import statistics
import time

import torch
from transformers import DeepseekV4Config, DeepseekV4ForCausalLM

parser = argparse.ArgumentParser()
parser.add_argument("model", choices=("needle", "large"))
parser.add_argument("--model-dir")
parser.add_argument("--dtype", choices=("f32", "bf16"), default="f32")
parser.add_argument("--threads", type=int, default=2)
parser.add_argument("--lengths", default="1024")
parser.add_argument("--chunk", type=int, default=512)
parser.add_argument("--batches", default="1,4,16")
parser.add_argument("--context", type=int, default=1024)
parser.add_argument("--steps", type=int, default=16)
args = parser.parse_args()

# 302.9 M parameters, 143.5 M active a token: every kind of layer, published head dimensions.
LARGE = {
    "architectures": ["DeepseekV4ForCausalLM"], "model_type": "deepseek_v4", "attention_bias": False,
    "bos_token_id": 0, "eos_token_id": 1, "compress_ratios": [0, 4, 128, 0, 4, 128, 0, 4, 0],
    "compress_rope_theta": 160000, "hc_eps": 1e-6, "hc_mult": 4, "hc_sinkhorn_iters": 20, "head_dim": 512,
    "hidden_act": "silu", "hidden_size": 1024, "index_head_dim": 128, "index_n_heads": 8, "index_topk": 512,
    "max_position_embeddings": 32768, "moe_intermediate_size": 512, "n_routed_experts": 16, "n_shared_experts": 1,
    "norm_topk_prob": True, "num_attention_heads": 8, "num_experts_per_tok": 4, "num_hidden_layers": 8,
    "num_hash_layers": 2, "num_key_value_heads": 1, "num_nextn_predict_layers": 0, "o_groups": 4,
    "o_lora_rank": 512, "q_lora_rank": 512, "qk_rope_head_dim": 64, "rms_norm_eps": 1e-6,
    "rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 16, "original_max_position_embeddings": 2048,
                     "type": "yarn"},
    "rope_theta": 10000, "routed_scaling_factor": 1.5, "scoring_func": "sqrtsoftplus", "sliding_window": 128,
    "swiglu_limit": 10.0, "tie_word_embeddings": False, "topk_method": "noaux_tc", "vocab_size": 8192,
}


def build(dtype):
    settings = {"attn_implementation": "eager", "experts_implementation": "grouped_mm"}
    if args.model == "needle":
        model = DeepseekV4ForCausalLM.from_pretrained(args.model_dir, dtype=torch.bfloat16, **settings).eval()
        return model.to(dtype)               # the loader expands FP8 and FP4 to bf16, which is exact
    config = DeepseekV4Config.from_dict(dict(LARGE))
    config._attn_implementation, config._experts_implementation = settings.values()
    model = DeepseekV4ForCausalLM(config).to(dtype).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "norm" in name:
                p.fill_(1.0)
            else:
                scale = p.shape[-1] ** -0.5 if p.dim() > 1 else 0.3
                p.copy_((torch.randn(p.shape, generator=generator) * scale).to(dtype))
        for name, p in model.named_buffers():
            if name.endswith("tid2eid"):
                order = torch.rand((p.shape[0], config.n_routed_experts), generator=generator).argsort(-1)
                p.copy_(order[:, : p.shape[1]])
    return model


def seconds(run, repetitions=3):
    found = []
    for _ in range(repetitions):
        start = time.perf_counter()
        run()
        found.append(time.perf_counter() - start)
    return statistics.median(found)


@torch.inference_mode()
def prefill(model, ids):
    cache = None
    for at in range(0, ids.shape[1], args.chunk):
        out = model(ids[:, at:at + args.chunk], past_key_values=cache, use_cache=True, logits_to_keep=1)
        cache = out.past_key_values
    return out.logits[:, -1].argmax(-1, keepdim=True), cache


@torch.inference_mode()
def main():
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    model = build({"f32": torch.float32, "bf16": torch.bfloat16}[args.dtype])
    generator = torch.Generator().manual_seed(1)
    make = lambda batch, n: torch.randint(16, 800, (batch, n), generator=generator)
    prefill(model, make(1, 32))              # warm up
    for n in map(int, filter(None, args.lengths.split(","))):
        ids = make(1, n)
        print(json.dumps({"test": "prefill", "tokens": n, "tok_s": n / seconds(lambda: prefill(model, ids))}), flush=True)
    for batch in map(int, args.batches.split(",")):
        token, cache = prefill(model, make(batch, args.context))

        def steps():
            nonlocal token, cache
            for _ in range(args.steps):
                out = model(token, past_key_values=cache, use_cache=True)
                token, cache = out.logits[:, -1].argmax(-1, keepdim=True), out.past_key_values
        steps()
        print(json.dumps({"test": "decode", "batch": batch, "tok_s": batch * args.steps / seconds(steps)}), flush=True)


main()
