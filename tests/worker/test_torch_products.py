"""FLOPs of PyTorch's products, in eager calls and in compiled graphs, against hand counts."""

import math
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch.nn import functional  # noqa: E402

from paradnn.worker.frameworks.torch_products import GraphProducts, ProductCounter  # noqa: E402

nn = torch.nn
rand = torch.randn


def eager_flops(function: Callable[[], Any]) -> float:
    counter = ProductCounter()
    with counter:
        function()
    return sum(cost.product_flops for cost in counter.costs)


def training_flops(module: Callable[..., Any], example: Any) -> float:
    """Return the FLOPs of forward and backward pass, including the gradient of the input."""
    inputs = example.clone().requires_grad_()

    def step() -> None:
        outputs = module(inputs)
        first = outputs[0] if isinstance(outputs, tuple) else outputs
        first.sum().backward()

    return eager_flops(step)


def make_attention(query: Any, key: Any, value: Any, **settings: Any) -> Callable[[], Any]:
    return lambda: functional.scaled_dot_product_attention(query, key, value, **settings)


HEADS = rand(1, 12, 64, 64)
IMAGE = rand(2, 8, 10, 10)
SEQUENCE = rand(3, 5, 8)
TOKENS = rand(2, 16, 64)
PROJECTIONS = 2 * 2 * 16 * 64 * 4 * 64
MIXING = 2 * 2 * 2 * 16 * 16 * 64

FORWARD = [
    pytest.param(make_attention(HEADS, HEADS, HEADS), 12_582_912, id="attention"),
    pytest.param(
        make_attention(HEADS, HEADS, HEADS, is_causal=True), 12_582_912, id="causal-attention"
    ),
    pytest.param(
        make_attention(HEADS, HEADS, HEADS, attn_mask=rand(64, 64)),
        12_582_912,
        id="masked-attention",
    ),
    pytest.param(
        make_attention(HEADS, rand(1, 4, 32, 64), rand(1, 4, 32, 64), enable_gqa=True),
        2 * 2 * 12 * 64 * 32 * 64,
        id="grouped-query-attention",
    ),
    pytest.param(
        make_attention(HEADS, HEADS, rand(1, 12, 64, 32)),
        2 * 12 * 64 * 64 * (64 + 32),
        id="narrow-value",
    ),
    pytest.param(lambda: nn.Conv2d(8, 12, 3)(IMAGE), 2 * 2 * 64 * 12 * 9 * 8, id="convolution"),
    pytest.param(
        lambda: nn.Conv2d(8, 12, 3, groups=4)(IMAGE), 2 * 2 * 64 * 12 * 9 * 2, id="grouped"
    ),
    pytest.param(lambda: nn.Conv2d(8, 16, 3, groups=8)(IMAGE), 2 * 2 * 64 * 16 * 9, id="depthwise"),
    pytest.param(
        lambda: nn.Conv2d(8, 12, 3, dilation=2, stride=2)(IMAGE),
        2 * 2 * 9 * 12 * 9 * 8,
        id="dilated",
    ),
    pytest.param(
        lambda: nn.ConvTranspose2d(8, 12, 3, stride=2)(IMAGE),
        2 * 2 * 100 * 12 * 9 * 8,
        id="transposed",
    ),
    pytest.param(
        lambda: nn.ConvTranspose2d(8, 12, 3, stride=2, groups=4)(IMAGE),
        2 * 2 * 100 * 3 * 9 * 8,
        id="transposed-grouped",
    ),
    pytest.param(
        lambda: nn.Conv3d(3, 5, 3, padding=1)(rand(2, 3, 4, 4, 4)), 2 * 2 * 64 * 5 * 27 * 3, id="3d"
    ),
    pytest.param(
        lambda: torch.einsum("bqhd,bkhd->bhqk", rand(2, 7, 3, 4), rand(2, 5, 3, 4)),
        2 * 2 * 3 * 7 * 5 * 4,
        id="einsum",
    ),
    pytest.param(lambda: torch.einsum("i,j->ij", rand(4), rand(5)), 0, id="outer-product"),
    pytest.param(lambda: torch.mv(rand(4, 5), rand(5)), 2 * 4 * 5, id="vector"),
    pytest.param(lambda: torch.addmv(rand(4), rand(4, 5), rand(5)), 2 * 4 * 5, id="vector-bias"),
    pytest.param(lambda: torch.dot(rand(9), rand(9)), 2 * 9, id="dot"),
    pytest.param(
        lambda: torch.addbmm(rand(4, 6), rand(3, 4, 5), rand(3, 5, 6)),
        2 * 3 * 4 * 5 * 6,
        id="addbmm",
    ),
    pytest.param(
        lambda: torch._int_mm(
            torch.ones(32, 16, dtype=torch.int8), torch.ones(16, 24, dtype=torch.int8)
        ),
        2 * 32 * 16 * 24,
        id="int8",
    ),
    pytest.param(
        lambda: nn.EmbeddingBag(10, 4)(torch.zeros(2, 3, dtype=torch.long)), 0, id="embedding-bag"
    ),
    pytest.param(
        lambda: nn.LSTM(8, 16, 2, batch_first=True)(SEQUENCE),
        2 * 15 * 64 * (8 + 16) + 2 * 15 * 64 * (16 + 16),
        id="lstm",
    ),
    pytest.param(
        lambda: nn.LSTM(8, 16, batch_first=True, bidirectional=True)(SEQUENCE),
        2 * 2 * 15 * 64 * (8 + 16),
        id="bidirectional-lstm",
    ),
    pytest.param(
        lambda: nn.GRU(8, 16, batch_first=True)(SEQUENCE), 2 * 15 * 48 * (8 + 16), id="gru"
    ),
]


@pytest.mark.parametrize(("function", "flops"), FORWARD)
def test_products_of_calls_agree_with_hand_counts(function: Callable[[], Any], flops: int) -> None:
    assert eager_flops(function) == flops


@pytest.mark.parametrize(("function", "flops"), FORWARD)
def test_products_of_calls_in_inference_mode_agree_with_hand_counts(
    function: Callable[[], Any], flops: int
) -> None:
    """Without gradients, PyTorch chooses different kernels, such as one for a whole LSTM."""
    with torch.inference_mode():
        assert eager_flops(function) == flops


def test_fused_attention_of_a_module_in_evaluation_has_the_flops_of_its_products() -> None:
    module = nn.MultiheadAttention(64, 4, batch_first=True).eval()
    with torch.inference_mode():
        flops = eager_flops(lambda: module(TOKENS, TOKENS, TOKENS))
    assert flops == PROJECTIONS + MIXING


def test_a_fused_encoder_layer_in_evaluation_has_the_flops_of_its_products() -> None:
    module = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True).eval()
    with torch.inference_mode():
        flops = eager_flops(lambda: module(TOKENS))
    assert flops == PROJECTIONS + MIXING + 2 * 2 * 2 * 16 * 64 * 128


@pytest.mark.parametrize(
    ("module", "example", "flops"),
    [
        pytest.param(
            lambda x: functional.scaled_dot_product_attention(x, x, x),
            HEADS,
            3 * 12_582_912,
            id="attention",
        ),
        pytest.param(nn.Conv2d(8, 12, 3), IMAGE, 3 * 2 * 2 * 64 * 12 * 9 * 8, id="convolution"),
        pytest.param(
            nn.Conv2d(8, 12, 3, groups=4), IMAGE, 3 * 2 * 2 * 64 * 12 * 9 * 2, id="grouped"
        ),
        pytest.param(
            nn.Conv2d(8, 8, 3, groups=8, stride=2, padding=1),
            IMAGE,
            3 * 2 * 2 * 25 * 8 * 9,
            id="depthwise",
        ),
        pytest.param(
            nn.ConvTranspose2d(8, 12, 3, stride=2, groups=4),
            IMAGE,
            3 * 2 * 2 * 100 * 3 * 9 * 8,
            id="transposed-grouped",
        ),
        pytest.param(
            nn.LSTM(8, 16, batch_first=True), SEQUENCE, 3 * 2 * 15 * 64 * (8 + 16), id="lstm"
        ),
    ],
)
def test_gradients_cost_twice_the_forward_pass(
    module: Callable[..., Any], example: Any, flops: int
) -> None:
    assert training_flops(module, example) == flops


def test_a_scan_counts_every_iteration() -> None:
    scan = pytest.importorskip("torch._higher_order_ops.scan").scan
    weight = rand(4, 4)

    def body(state: Any, element: Any) -> tuple[Any, Any]:
        state = state @ weight + element
        return state, state.clone()

    with torch.inference_mode():
        flops = eager_flops(lambda: scan(body, rand(2, 4), rand(7, 2, 4)))
    assert flops == 7 * 2 * 2 * 4 * 4


class _ReferenceGraph(torch.nn.Module):
    """A convolution followed by attention over its positions."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(8, 16, 3, groups=4)

    def forward(self, image: Any) -> Any:
        tokens = self.convolution(image).flatten(2).transpose(1, 2)[:, None]
        return functional.scaled_dot_product_attention(tokens, tokens, tokens)


def test_a_graph_has_the_same_flops_as_its_calls() -> None:
    """Count the FLOPs of a graph that PyTorch traced, without compiling it."""
    from torch.fx.experimental.proxy_tensor import make_fx

    module = _ReferenceGraph()
    with torch.no_grad():
        traced = make_fx(module)(IMAGE)
    costs = GraphProducts()._graph_costs(traced.graph)
    convolution = 2 * 2 * 64 * 16 * 9 * 2
    mixing = 2 * 2 * 2 * math.prod((64, 64, 16))
    assert sum(cost.product_flops for cost in costs) == convolution + mixing
    with torch.inference_mode():
        assert eager_flops(lambda: module(IMAGE)) == convolution + mixing
