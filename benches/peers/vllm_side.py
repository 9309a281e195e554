"""vLLM's scheduler and block pool with no model: what `compare.py` measures of them.

Importing this takes ten seconds: it loads PyTorch.
"""

import logging
import os
import random
import time
import tracemalloc

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
logging.disable(logging.WARNING)

import torch
from vllm.config import CacheConfig, ModelConfig, SchedulerConfig, VllmConfig
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.utils.import_utils import resolve_obj_by_qualname
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

from tiny_llama import tiny_llama

BLOCK = 16
SCHEDULER = "vllm.v1.core.sched.scheduler.Scheduler"

init_none_hash(sha256)
hasher = get_request_block_hasher(BLOCK, sha256)


def request(name, tokens, max_tokens, block_hasher=hasher):
    return Request(
        request_id=str(name),
        prompt_token_ids=tokens,
        pooling_params=None,
        sampling_params=SamplingParams(ignore_eos=True, max_tokens=max_tokens),
        block_hasher=block_hasher,
    )


def scheduler(name, num_blocks, rows):
    """A scheduler class by its name, over a memory of `num_blocks`."""
    model = ModelConfig(
        model=tiny_llama(), dtype="float32", seed=0, skip_tokenizer_init=True, max_model_len=32_768
    )
    sched = SchedulerConfig(
        max_num_seqs=rows,
        max_num_batched_tokens=max(8_192, rows),
        max_model_len=32_768,
        enable_chunked_prefill=True,
        is_encoder_decoder=False,
        async_scheduling=False,
    )
    cache = CacheConfig(block_size=BLOCK, cache_dtype="auto", enable_prefix_caching=True)
    config = VllmConfig(scheduler_config=sched, model_config=model, cache_config=cache)
    spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=1, dtype=torch.float32)
    groups = [KVCacheGroupSpec(["layer"], spec)]
    cache.num_gpu_blocks = num_blocks
    return resolve_obj_by_qualname(name)(
        vllm_config=config,
        kv_cache_config=KVCacheConfig(num_blocks, kv_cache_tensors=[], kv_cache_groups=groups),
        block_size=BLOCK,
        log_stats=True,
        structured_output_manager=StructuredOutputManager(config),
    )


def output(ids, tokens):
    return ModelRunnerOutput(
        req_ids=ids,
        req_id_to_index={name: at for at, name in enumerate(ids)},
        sampled_token_ids=tokens,
        logprobs=None,
        prompt_logprobs_dict={},
        pooler_output=[],
    )


class Batch:
    """A scheduler all of whose rows decode."""

    def __init__(self, prompts, num_blocks, *, max_tokens=4_000, name=SCHEDULER):
        self.sched = scheduler(name, num_blocks, len(prompts))
        for at, prompt in enumerate(prompts):
            self.sched.add_request(request(at, prompt, max_tokens))
        left = {str(at): len(prompt) for at, prompt in enumerate(prompts)}
        while any(tokens > 0 for tokens in left.values()):
            plan = self.sched.schedule()
            for seq, tokens in plan.num_scheduled_tokens.items():
                left[seq] -= tokens
            ids = list(plan.num_scheduled_tokens)
            sampled = [[5] if left[seq] <= 0 else [] for seq in ids]
            self.sched.update_from_output(plan, output(ids, sampled))
        self.rows = len(prompts)

    def round(self):
        """The seconds of schedule and update; what a model would return is made between them."""
        start = time.thread_time()
        plan = self.sched.schedule()
        scheduled = time.thread_time()
        ids = list(plan.num_scheduled_tokens)
        assert len(ids) == self.rows
        model = output(ids, [[5]] * self.rows)
        answered = time.thread_time()
        self.sched.update_from_output(plan, model)
        return time.thread_time() - answered + scheduled - start


class Pool:
    """A block pool whose blocks were all used, and are free in mixed order."""

    def __init__(self, num_blocks):
        self.pool = BlockPool(num_blocks, True, BLOCK)  # noqa: FBT003 - vLLM takes it by place
        blocks = self.pool.get_new_blocks(num_blocks - 1)
        random.Random(0).shuffle(blocks)  # noqa: S311 - a seeded order
        self.pool.free_blocks(blocks)

    def allocate_and_free(self, blocks):
        self.pool.free_blocks(reversed(self.pool.get_new_blocks(blocks)))


class Prefixes:
    """A pool with cached prompts, and requests that ask for them."""

    def __init__(self, prompts, num_blocks):
        cached = [prompt[:-1] for prompt in prompts]
        batch = Batch(cached, num_blocks, max_tokens=1)
        self.manager = batch.sched.kv_cache_manager

    def match(self, prompt):
        """Hashes the prompt's blocks and finds them; returns the tokens found."""
        asked = request("asked", prompt, 1)
        _, tokens, _ = self.manager.get_computed_blocks(asked)
        return tokens


def request_only(prompt):
    """A request without hashes: what must be taken off `Prefixes.match`."""
    return request("asked", prompt, 1, block_hasher=None)


def bytes_per_cached_block(num_blocks=100_000):
    """Python objects of a cached block, without its tokens."""
    asked = request("memory", list(range(num_blocks * BLOCK)), 1)
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    pool = BlockPool(num_blocks + 1, True, BLOCK)  # noqa: FBT003 - vLLM takes it by place
    blocks = pool.get_new_blocks(num_blocks)
    pool.cache_full_blocks(asked, blocks, 0, num_blocks, BLOCK, 0)
    taken = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    return taken / num_blocks
