"""Categories of operations: matmul, convolution, reduction, control, communication, and so on.

A trace names operations in one of five vocabularies, which this module calls languages: those of
TensorFlow, PyTorch, HLO and ONNX, and the lower-case names of device kernels whose operation is
unknown. For ONNX, these are the names that the inference engines use.
"""

import functools
import re

#: Categories whose FLOPs count as products.
PRODUCTS = ("matmul", "convolution")

#: For each language, pairs of a category and a regular expression. The first match decides.
_PATTERNS: dict[str, tuple[tuple[str, str], ...]] = {
    "tensorflow": (
        ("matmul", r"^(MatMul|BatchMatMul(V[23])?|Einsum|XlaDotV2|SparseTensorDenseMatMul)$"),
        (
            "convolution",
            r"^(Conv[23]D|DepthwiseConv2dNative)(Backprop(Input|Filter)(V2)?)?$",
        ),
        (
            "reduction",
            r"^(Sum|Mean|Max|Min|Prod|Any|All|ArgM(ax|in)|BiasAddGrad|L2Loss"
            r"|(Max|Avg)Pool(Grad)?|(Unsorted)?SegmentSum|SparseSegment\w+|(Log)?Softmax"
            r"|(Sparse)?SoftmaxCrossEntropyWithLogits)$",
        ),
        # These operations pass a buffer on without moving data, or control which operations run.
        (
            "control",
            r"^(Reshape|Identity(N)?|(Read|Assign)VariableOp|Squeeze|ExpandDims|(Variable)?Shape"
            r"|StopGradient|Const|NoOp|VarHandleOp|PreventGradient|Enter|Exit|Merge|Switch"
            r"|NextIteration|LoopCond|While|If|Case|_(Host)?(Recv|Send)|_Arg|_Retval|Less"
            r"|LogicalAnd)$",
        ),
        # The event of a collective includes the wait for the other processes.
        ("communication", r"^(Collective|Nccl|XlaAllReduce)"),
        (
            "data movement",
            r"^(TensorList|ScopedAllocator|Gather|Scatter|Resource(Gather|Scatter)|Strided|Concat"
            r"|Split|Pack$|Unpack$|Slice$|Pad|MirrorPad|Tile$|Transpose|Fill$|ZerosLike$|OnesLike$"
            r"|BroadcastTo$|Copy|Reverse|Snapshot$|Range$|Unique|Where$)",
        ),
        ("elementwise", r""),
    ),
    "torch": (
        (
            "matmul",
            r"^aten::(b?mm|mv|dot|vdot|add(mm|mv|bmm)_?|baddbmm_?|_addmm_activation|_int_mm"
            r"|_scaled_mm)$",
        ),
        ("matmul", r"^aten::(_cudnn_rnn|miopen_rnn|mkldnn_rnn_layer)(_backward)?$"),
        ("matmul", r"^(mkldnn::_linear_pointwise|mkl::_mkl_linear)$"),
        # On a CPU, scaled_dot_product_attention calls one operation. On a GPU, the kernels belong
        # to the flash or efficient attention that it calls.
        (
            "matmul",
            r"^aten::_scaled_dot_product_(flash_attention_for_cpu|cudnn_attention"
            r"|fused_attention_overrideable)(_backward)?$",
        ),
        ("matmul", r"^aten::_(flash|efficient)_attention_(for|back)ward$"),
        (
            "convolution",
            r"^(aten::convolution(_overrideable|_backward)?"
            r"|mkldnn::_convolution(_transpose)?_pointwise)$",
        ),
        ("reduction", r"^(graph_\d+_)?triton_(red|per)_fused"),
        ("elementwise", r"^(graph_\d+_)?(cpp|triton_[a-z]+)_fused"),
        # Nodes of the autograd graph, which call other operations.
        ("control", r"^(?!aten::|c10d::|inductor::)"),
        ("communication", r"^c10d::"),
        # These operations return a view of a buffer, or call other operations that do the work.
        (
            "control",
            r"^aten::(_?reshape\w*|view\w*|_unsafe_view|t|transpose|permute|expand\w*|slice|select"
            r"|narrow|alias|as_strided\w*|detach\w*|unsqueeze|squeeze|unbind|split\w*|chunk|unfold"
            r"|empty\w*|new_empty\w*|resize_|resolve_\w+|lift_fresh|item|_local_scalar_dense"
            r"|result_type|to|_has_compatible\w*|contiguous|type_as|requires_grad_|set_|is_\w+)$",
        ),
        (
            "reduction",
            r"^aten::(sum|mean|max|min|amax|amin|prod|any|all|argmax|argmin|norm|var|std|var_mean"
            r"|_foreach_norm|_?log_softmax\w*|_?softmax\w*|nll_loss\w*|max_pool2d\w*"
            r"|avg_pool2d\w*|adaptive_avg_pool2d\w*|\w*batch_norm\w*|mkldnn_max_pool2d\w*"
            r"|mse_loss\w*|_embedding_bag\w*)$",
        ),
        (
            "data movement",
            r"^aten::(_to_copy|copy_|_foreach_copy_|_?cat|stack|index\w*|_index_put_impl_|gather"
            r"|scatter\w*|embedding|embedding_dense_backward|fill_|zero_|_foreach_zero_"
            r"|constant_pad_nd|repeat|roll|flip|masked_fill\w*|narrow_copy|select_backward"
            r"|slice_backward|unfold_backward|_pin_memory|one_hot)$",
        ),
        ("elementwise", r""),
    ),
    "hlo": (
        ("matmul", r"^(dot|attention)$"),
        ("convolution", r"^convolution$"),
        ("communication", r"^(all-reduce|all-gather|reduce-scatter|all-to-all|collective)"),
        ("reduction", r"^(reduce|reduce-window|select-and-scatter|sort)$"),
        (
            "control",
            r"^(parameter|constant|tuple|get-tuple-element|bitcast|after-all"
            r"|(partition|replica)-id)$",
        ),
        ("control", r"^(while|call|conditional)$"),
        (
            "data movement",
            r"^(slice|dynamic-slice|gather|dynamic-update-slice|copy(-start|-done)?|transpose"
            r"|reshape)$",
        ),
        (
            "data movement",
            r"^(broadcast|concatenate|scatter|pad|reverse|iota|convert|bitcast-convert)$",
        ),
        ("other", r"^custom-call$"),
        ("elementwise", r""),
    ),
    "onnx": (
        ("matmul", r"MatMul|Gemm$|^FullyConnected$|Attention|^(LSTM|GRU|RNN)(Seq|Cell|$)"),
        ("convolution", r"Conv(?!ert)|^Deconvolution$"),
        (
            "reduction",
            r"^Reduce|Pool|^(Log)?Softmax|^Arg(Max|Min)$|^TopK|^(Skip|Simplified)*LayerNorm"
            r"|^(MVN|RMSNorm)",
        ),
        (
            "control",
            r"^(Loop|Scan|If|TensorIterator|Shape(Of)?|Identity"
            r"|((Un)?[Ss]queeze|Reshape|Flatten)$)",
        ),
        (
            "data movement",
            r"^(Transpose|Reorder|Gather|Scatter|Concat|(Strided)?Slice|Split|Pad|Expand|Tile"
            r"|Broadcast)",
        ),
        ("data movement", r"^(Cast|Convert|Range|Constant|Copy|MemoryCopy)"),
        ("elementwise", r""),
    ),
    "kernel": (
        ("convolution", r"conv(?!ert)"),
        ("matmul", r"dot|matmul|gemm"),
        ("communication", r"all-reduce|all-gather|reduce-scatter|all-to-all|collective|nccl"),
        ("reduction", r"reduce"),
        (
            "data movement",
            r"copy|convert|memcpy|memset|transpose|data formatting|infeed|outfeed|gather|scatter",
        ),
        ("elementwise", r"fusion|elementwise"),
        ("other", r""),
    ),
}


@functools.cache
def categorize(language: str, name: str) -> str:
    """Return the category of an operation.

    Args:
        language: Origin of the name: `tensorflow`, `torch`, `hlo` or `onnx` for an operation of
            TensorFlow, PyTorch, XLA or ONNX; `kernel` for a kernel of a device whose operation is
            unknown.
        name: The name of the type of operation, such as "MatMul" in TensorFlow, or the name of the
            kernel in lower case.

    Returns:
        One of `matmul`, `convolution`, `elementwise`, `reduction`, `data movement`,
        `communication`, `control` and `other`.
    """
    patterns = _PATTERNS[language]
    return next(category for category, pattern in patterns if re.search(pattern, name))
