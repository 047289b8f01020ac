"""Small PyTorch modules, each with something that a program in another framework can get wrong."""

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

FEATURES, HIDDEN, CLASSES, WORDS, LENGTH = 6, 8, 3, 11, 4


class Vectors(nn.Module):
    """Two layers on vectors (B, 6); modules below change what is between them."""

    inputs: ClassVar[str] = "vectors"

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(FEATURES, HIDDEN), nn.Linear(HIDDEN, CLASSES)

    def between(self, h: Tensor) -> Tensor:
        return torch.tanh(h)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.between(self.first(x)))


class NoGrad(Vectors):
    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        with torch.no_grad():
            gate = torch.sigmoid(self.first(x))
        return self.last(h * gate)


class DataOfATensor(Vectors):
    def between(self, h: Tensor) -> Tensor:
        return h * h.data


class HookOnATensor(Vectors):
    def between(self, h: Tensor) -> Tensor:
        if h.requires_grad:
            h.register_hook(lambda g: 3 * g)
        return h


class Rounded(torch.autograd.Function):
    """Rounds, with the gradient of the identity."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return torch.round(x)

    @staticmethod
    def backward(ctx: Any, *g: Tensor) -> Tensor:
        return g[0]


class AutogradFunction(Vectors):
    def between(self, h: Tensor) -> Tensor:
        found: Tensor = Rounded.apply(4 * h)
        return found


class DetachedSlice(Vectors):
    def between(self, h: Tensor) -> Tensor:
        return torch.cat([h[:, :3].detach(), h[:, 3:]], dim=1)


class StraightThrough(Vectors):
    def between(self, h: Tensor) -> Tensor:
        return h + (torch.sign(h) - h).detach()


def _doubled(layer: nn.Module, into: Any, out: Any) -> Any:
    return (2 * into[0],)


class BackwardHookOfALayer(Vectors):
    def __init__(self) -> None:
        super().__init__()
        self.last.register_full_backward_hook(_doubled)


class InPlace(Vectors):
    def between(self, h: Tensor) -> Tensor:
        h = h * 2
        h += 1
        h[:, 0] = h[:, 1] + h[:, 2]
        h[:, 3:].mul_(0.5)
        return h.relu_()


class InPlaceOnAView(Vectors):
    def between(self, h: Tensor) -> Tensor:
        h = h * 2
        h.t()[2].add_(h[:, 5])
        h.view(len(h), -1)[:, ::3].mul_(2)
        return torch.tanh(h)


class FilledInPlace(Vectors):
    def between(self, h: Tensor) -> Tensor:
        return h.masked_fill(h < 0, 0.1).clone().clamp_(max=1.0)


class TiedLayers(Vectors):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(HIDDEN, HIDDEN), nn.Linear(HIDDEN, HIDDEN)
        self.two.weight = self.one.weight

    def between(self, h: Tensor) -> Tensor:
        return torch.tanh(self.two(torch.tanh(self.one(h))))


class TransposedTie(Vectors):
    def between(self, h: Tensor) -> Tensor:
        return functional.linear(torch.tanh(h) @ self.first.weight, self.first.weight)


class ReusedInAList(Vectors):
    def __init__(self) -> None:
        super().__init__()
        shared = nn.Linear(HIDDEN, HIDDEN)
        self.layers = nn.ModuleList([shared, nn.Tanh(), shared])
        self.scales = nn.ParameterList([nn.Parameter(torch.ones(HIDDEN)), nn.Parameter(torch.full((HIDDEN,), 0.5))])

    def between(self, h: Tensor) -> Tensor:
        for layer in self.layers:
            h = layer(h)
        return h * self.scales[0] + self.scales[1] * self.scales[0]


class FrozenLayer(Vectors):
    def __init__(self) -> None:
        super().__init__()
        self.first.requires_grad_(False)


class Buffers(Vectors):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.linspace(0.5, 1.5, HIDDEN))
        self.register_buffer("order", torch.arange(HIDDEN).flip(0))

    def between(self, h: Tensor) -> Tensor:
        return torch.tanh(h[:, self.get_buffer("order")] * self.get_buffer("scale"))


class NewTensors(Vectors):
    def between(self, h: Tensor) -> Tensor:
        ramp = torch.arange(HIDDEN, dtype=h.dtype) / HIDDEN
        return h * ramp + torch.zeros(len(h), 1) + torch.ones_like(h) * torch.eye(HIDDEN)[0]


class LayerNorm(Vectors):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(HIDDEN)

    def between(self, h: Tensor) -> Tensor:
        return self.norm(h)


class GroupNorm(LayerNorm):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(2, HIDDEN)  # type: ignore[assignment]


class BatchNorm(LayerNorm):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(HIDDEN)  # type: ignore[assignment]


class WeightNorm(Vectors):
    def __init__(self) -> None:
        super().__init__()
        self.first = parametrizations.weight_norm(self.first)


class Orthogonal(Vectors):
    def __init__(self) -> None:
        super().__init__()
        parametrizations.orthogonal(self.first, orthogonal_map="cayley")


class Kinks(Vectors):
    """The inputs of clamp, abs, relu, maximum and hardtanh are exactly at their kinks for some entries."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.tensor([0.0, 1.0, -1.0, 0.0, 0.0, 1.0, 0.5, 0.0]))

    def between(self, h: Tensor) -> Tensor:
        s = self.shift
        parts = [s.clamp(0, 1), s.abs(), torch.relu(s), torch.maximum(s, torch.zeros_like(s)), functional.hardtanh(s)]
        return h + torch.stack(parts).sum(0)


class WhereAndMasks(Vectors):
    def between(self, h: Tensor) -> Tensor:
        positive = torch.where(h > 0, h, torch.zeros_like(h))
        return positive.masked_fill(h > 0.5, 0.5) + torch.where(h.abs() < 1e-3, 1.0, torch.sqrt(h.abs() + 1e-2))


class GatherScatter(Vectors):
    def between(self, h: Tensor) -> Tensor:
        order = h.argsort(dim=1)
        gathered = h.gather(1, order)
        scattered = torch.zeros_like(h).scatter_add(1, order % 4, h)
        return gathered + scattered + h.index_select(1, torch.arange(HIDDEN - 1, -1, -1))


class Einsum(Vectors):
    def between(self, h: Tensor) -> Tensor:
        squares = torch.einsum("bi,bj->bij", h, h)
        return torch.einsum("bij,kj->bi", squares, self.last.weight)


class Sorted(Vectors):
    def between(self, h: Tensor) -> Tensor:
        top = h.topk(3, dim=1).values
        return torch.cat([top, h.sort(dim=1).values[:, :4], h.cumsum(1)[:, -1:]], dim=1)


class Fourier(Vectors):
    def between(self, h: Tensor) -> Tensor:
        return torch.fft.irfft(torch.fft.rfft(h) * 0.5, n=HIDDEN) + torch.fft.rfft(h).abs().sum(1, keepdim=True)


class Reductions(Vectors):
    def between(self, h: Tensor) -> Tensor:
        parts = [h.logsumexp(1), h.norm(dim=1), h.var(1), h.amax(1), h.std(1), h.prod(1), h.softmax(1)[:, 0]]
        return torch.stack([*parts, h.mean(1)], dim=1)


class CalledFunctionally(Vectors):
    def between(self, h: Tensor) -> Tensor:
        inner = nn.Linear(FEATURES, HIDDEN)
        halves = {"weight": self.first.weight / 2, "bias": self.first.bias * 2}
        found: Tensor = functional_call(inner, halves, (h[:, :FEATURES],))
        return found


class Checkpointed(Vectors):
    def between(self, h: Tensor) -> Tensor:
        return checkpoint(torch.tanh, 2 * h, use_reentrant=False)


class Activations(Vectors):
    def between(self, h: Tensor) -> Tensor:
        parts = [functional.gelu(h), functional.silu(h), functional.elu(h), functional.softplus(h), functional.mish(h)]
        return (
            sum(parts, functional.leaky_relu(h))
            + functional.glu(torch.cat([h, h], 1))
            + functional.prelu(h, self.last.bias[:1])
        )


class Tokens(nn.Module):
    """Embedded tokens (B, 4), and their mean."""

    inputs: ClassVar[str] = "tokens"

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.last = nn.Embedding(WORDS, HIDDEN, padding_idx=0), nn.Linear(HIDDEN, CLASSES)

    def mix(self, h: Tensor) -> Tensor:
        return h

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.mix(self.embedding(x)).mean(1))


class Attention(Tokens):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(HIDDEN, 2, batch_first=True)

    def mix(self, h: Tensor) -> Tensor:
        return h + self.attention(h, h, h, need_weights=False)[0]


class CausalAttention(Tokens):
    def mix(self, h: Tensor) -> Tensor:
        return functional.scaled_dot_product_attention(h, h, h, is_causal=True)


class Transformer(Tokens):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(HIDDEN, 2, 16, dropout=0.0, batch_first=True)

    def mix(self, h: Tensor) -> Tensor:
        return self.layer(h)


class Lstm(Tokens):
    def __init__(self) -> None:
        super().__init__()
        self.cells: nn.Module = nn.LSTM(HIDDEN, HIDDEN, batch_first=True)

    def mix(self, h: Tensor) -> Tensor:
        found: Tensor = self.cells(h)[0]
        return found


class Gru(Lstm):
    def __init__(self) -> None:
        super().__init__()
        self.cells = nn.GRU(HIDDEN, HIDDEN, batch_first=True, bidirectional=False)


class Images(nn.Module):
    """A convolution of images (B, 6, 6), pooled."""

    inputs: ClassVar[str] = "images"

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(1, 4, 3, padding=1)
        self.last: nn.Module = nn.LazyLinear(CLASSES)
        self(torch.zeros(2, 6, 6))

    def pool(self, h: Tensor) -> Tensor:
        return functional.max_pool2d(torch.relu(h), 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.pool(self.convolution(x[:, None])).flatten(1))


class Pools(Images):
    def pool(self, h: Tensor) -> Tensor:
        parts = [functional.avg_pool2d(h, 2), functional.adaptive_avg_pool2d(h, 3), functional.max_pool2d(h, 3, 1)]
        return torch.cat([part.flatten(1) for part in parts], dim=1)


class ConvolutionsOfAllKinds(Images):
    def __init__(self) -> None:
        super(Images, self).__init__()
        self.convolution = nn.Conv2d(1, 4, 3, padding=1)
        self.grouped = nn.Conv2d(4, 4, 3, groups=2, dilation=2, padding=2)
        self.up = nn.ConvTranspose2d(4, 2, 2, stride=2)
        self.last = nn.Linear(2 * 12 * 12, CLASSES)

    def pool(self, h: Tensor) -> Tensor:
        return self.up(torch.relu(self.grouped(h)))


QUICK = (NoGrad, DataOfATensor, HookOnATensor, AutogradFunction, DetachedSlice, InPlace, TiedLayers)
SLOW = (
    StraightThrough,
    BackwardHookOfALayer,
    FilledInPlace,
    InPlaceOnAView,
    TransposedTie,
    ReusedInAList,
    FrozenLayer,
    Buffers,
    NewTensors,
    LayerNorm,
    BatchNorm,
    GroupNorm,
    WeightNorm,
    Orthogonal,
    Kinks,
    WhereAndMasks,
    GatherScatter,
    Einsum,
    Sorted,
    Fourier,
    Reductions,
    CalledFunctionally,
    Checkpointed,
    Activations,
    Attention,
    CausalAttention,
    Transformer,
    Lstm,
    Gru,
    Images,
    Pools,
    ConvolutionsOfAllKinds,
)
