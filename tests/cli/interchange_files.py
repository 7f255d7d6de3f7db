"""Trajectories in the forms of other tools, made up by rules of our own: random runs written as KLASS and d2Cache
write theirs (docs/interchange.md), together with their meaning."""

import random

VOCAB, MASK = 120, 110


def klass_run(seed, dialect="llada", prompt=5, block=8, blocks=3, vocab=VOCAB, mask=MASK):
    """-> the array of steps; [(absolute position, token, confidence)] of each step."""
    chance = random.Random(seed)
    confidence_digits, kl_digits, first = (4, 6, 1) if dialect == "llada" else (6, 10, 0)
    if dialect == "dream":
        block, blocks = block * blocks, 1
    state = {prompt + i: mask for i in range(block * blocks)}
    steps, decided = [], []
    for number in range(blocks):
        here = range(prompt + number * block, prompt + (number + 1) * block)
        while masks := [p for p in here if state[p] == mask]:
            tokens = []
            for position in masks:
                token = chance.choice([t for t in range(vocab) if t != mask])
                kl = "inf" if chance.random() < 0.1 else round(chance.expovariate(1) - 1e-5, kl_digits)
                tokens.append({"position": position, "token_id": token,
                               "confidence": round(chance.random(), confidence_digits), "kl_divergence": kl})
            chosen = chance.sample(tokens, chance.randint(1, min(4, len(tokens))))
            for token in chosen:
                state[token["position"]] = token["token_id"]
            decided.append([(t["position"], t["token_id"], t["confidence"]) for t in chosen])
            text = " ".join(f"w{t}" for t in state.values() if t != mask) + chance.choice(["", " é\ufffd", ' "q"\n'])
            step = {"step": len(steps) + first, "decoded_text": text, "decoded_tokens_num": len(chosen),
                    "decoded_tokens": [dict(t, decoded_token=f"w{t['token_id']}") for t in chosen],
                    "all_tokens": tokens}
            steps.append(step)
    return steps, decided


class Frames:
    """One sequence as d2Cache's Frame and FrameDelta hold it, its rules applied to plain lists."""

    def __init__(self, seed, prompt=4, length=12, block=None, mask=MASK, vocab=VOCAB):
        self.chance = random.Random(seed)
        self.mask, self.vocab, self.block = mask, vocab, block or length
        self.prompt = [self.chance.randrange(100) for _ in range(prompt)]
        self.tokens, self.confidence, self.steps = [mask] * length, [None] * length, [-1] * length
        self.initial = {"prompts": self.prompt, "generated_tokens": list(self.tokens),
                        "confidence": list(self.confidence), "steps": list(self.steps)}
        self.deltas, self.states = [], []

    def sure(self):
        return self.chance.randrange(1 << 20) / (1 << 20)  # exact in float32

    def step(self, revoke=0, insert=0, delete=0):
        """Decides one to three masks of the first block that has some, and takes back `revoke` tokens of it."""
        masked = [p for p, t in enumerate(self.tokens) if t == self.mask]
        block = masked[0] // self.block
        inside = range(block * self.block, min((block + 1) * self.block, len(self.tokens)))
        masks = [p for p in inside if self.tokens[p] == self.mask]
        held = [p for p in inside if self.tokens[p] != self.mask]
        back = self.chance.sample(held, min(revoke, len(held)))
        chosen = self.chance.sample(masks, min(len(masks), self.chance.randint(1, 3)))
        decoded, sure = [-100] * len(self.tokens), [None] * len(self.tokens)
        for position in masks:
            decoded[position], sure[position] = self.chance.randrange(100), self.sure()
        for position in back:
            decoded[position], sure[position] = self.mask, 1.0
        index = chosen + back
        self.chance.shuffle(index)
        places = [self.chance.randrange(len(self.tokens) + 1) for _ in range(insert)]
        sources = list(range(len(decoded), len(decoded) + insert))
        for _ in range(insert):
            decoded.append(self.chance.randrange(100))
            sure.append(self.sure())
        gone = self.chance.sample(range(len(self.tokens) + insert), delete)
        self.deltas.append({
            "transfer_index": index, "transfer_src_index": None, "insert_index": places or None,
            "insert_src_index": sources or None, "delete_index": gone or None, "decoded_tokens": decoded,
            "confidence": sure, "extra": {}})
        now = max(self.steps, default=-1) + 1
        for position in index:
            taken_back = position in back
            self.tokens[position] = decoded[position]
            # Of a mask that comes back a trace says neither sureness nor step (docs/interchange.md).
            self.confidence[position] = None if taken_back else sure[position]
            self.steps[position] = -1 if taken_back else now
        for place in sorted(set(places), reverse=True):
            group = [s for p, s in zip(places, sources) if p == place]
            self.tokens[place:place] = [decoded[s] for s in group]
            self.confidence[place:place] = [sure[s] for s in group]
            self.steps[place:place] = [now] * len(group)
        for position in sorted(gone, reverse=True):
            del self.tokens[position], self.confidence[position], self.steps[position]
        self.states.append((list(self.tokens), list(self.confidence), list(self.steps)))

    def record(self):
        return {"initial_frame": self.initial, "deltas": self.deltas, "block_length": self.block}


def wino_run(seed, revoking=True, **shape):
    """Steps that decide, and now and then take back, until nothing is left."""
    frames = Frames(seed, **shape)
    for number in range(200):
        if frames.mask not in frames.tokens:
            break
        frames.step(revoke=1 if revoking and number in (2, 3, 5) else 0)
    return frames
