"""Our category of an operation, by its name in each of the languages that traces and programs speak."""

import functools
import re

#: The first pattern that is found in a name says its category.
_PATTERNS = {
    "tensorflow": (
        ("matmul", r"^(MatMul|BatchMatMul(V[23])?|Einsum|XlaDotV2)$"),
        ("convolution", r"^(Conv[23]D|DepthwiseConv2dNative)(Backprop(Input|Filter)(V2)?)?$"),
        (
            "reduction",
            r"^(Sum|Mean|Max|Min|Prod|Any|All|ArgM(ax|in)|BiasAddGrad|L2Loss|(Max|Avg)Pool(Grad)?|"
            r"(Unsorted)?SegmentSum|(Log)?Softmax|(Sparse)?SoftmaxCrossEntropyWithLogits)$",
        ),
        (  # they hand a buffer on and move nothing, or decide what runs
            "control",
            r"^(Reshape|Identity(N)?|(Read|Assign)VariableOp|Squeeze|ExpandDims|(Variable)?Shape|StopGradient|Const|"
            r"NoOp|VarHandleOp|PreventGradient|Enter|Exit|Merge|Switch|NextIteration|LoopCond|While|If|Case|"
            r"_(Host)?(Recv|Send)|_Arg|_Retval|Less|LogicalAnd)$",
        ),
        ("communication", r"^(Collective|Nccl|XlaAllReduce)"),  # an event of it lasts until the others have come
        (
            "data movement",
            r"^(TensorList|ScopedAllocator|Gather|Scatter|Resource(Gather|Scatter)|Strided|Concat|Split|Pack$|Unpack$|"
            r"Slice$|Pad|MirrorPad|Tile$|Transpose|Fill$|ZerosLike$|OnesLike$|BroadcastTo$|Copy|Reverse|Snapshot$|"
            r"Range$|Unique|Where$)",
        ),
        ("elementwise", ""),
    ),
    "torch": (
        ("matmul", r"^aten::(b?mm|mv|dot|addm[mv]_?|baddbmm_?|_addmm_activation|_cudnn_rnn(_backward)?)$"),
        ("matmul", r"^(aten::miopen_rnn(_backward)?|mkldnn::_linear_pointwise|mkl::_mkl_linear)$"),
        # What `scaled_dot_product_attention` calls has a name of its own on a CPU; on a GPU the kernels belong to the
        # inner names.
        ("matmul", r"^aten::_scaled_dot_product_(flash_attention_for_cpu|cudnn_attention)(_backward)?$"),
        ("matmul", r"^aten::_(flash|efficient)_attention_(for|back)ward$"),
        ("convolution", r"^(aten::convolution(_overrideable|_backward)?|mkldnn::_convolution_pointwise)$"),
        ("reduction", r"^(graph_\d+_)?triton_(red|per)_fused"),
        ("elementwise", r"^(graph_\d+_)?(cpp|triton_[a-z]+)_fused"),
        ("control", r"^(?!aten::|c10d::|inductor::)"),  # a node of the autograd graph, which calls others
        ("communication", r"^c10d::"),
        (  # they describe a buffer in another way, or only call others where nothing is to be done
            "control",
            r"^aten::(_?reshape\w*|view\w*|_unsafe_view|t|transpose|permute|expand\w*|slice|select|narrow|alias|"
            r"as_strided\w*|detach\w*|unsqueeze|squeeze|unbind|split\w*|chunk|unfold|empty\w*|new_empty\w*|resize_|"
            r"resolve_\w+|lift_fresh|item|_local_scalar_dense|result_type|to|_has_compatible\w*|contiguous|type_as|"
            r"requires_grad_|set_|is_\w+)$",
        ),
        (
            "reduction",
            r"^aten::(sum|mean|max|min|amax|amin|prod|any|all|argmax|argmin|norm|var|std|var_mean|_foreach_norm|"
            r"_?log_softmax\w*|_?softmax\w*|nll_loss\w*|max_pool2d\w*|avg_pool2d\w*|adaptive_avg_pool2d\w*|"
            r"\w*batch_norm\w*|mkldnn_max_pool2d\w*|mse_loss\w*)$",
        ),
        (
            "data movement",
            r"^aten::(_to_copy|copy_|_foreach_copy_|_?cat|stack|index\w*|_index_put_impl_|gather|scatter\w*|embedding|"
            r"embedding_dense_backward|fill_|zero_|_foreach_zero_|constant_pad_nd|repeat|roll|flip|masked_fill\w*|"
            r"narrow_copy|select_backward|slice_backward|unfold_backward|_pin_memory|one_hot)$",
        ),
        ("elementwise", ""),
    ),
    "hlo": (
        ("matmul", r"^(dot|attention)$"),
        ("convolution", r"^convolution$"),
        ("communication", r"^(all-reduce|all-gather|reduce-scatter|all-to-all|collective)"),
        ("reduction", r"^(reduce|reduce-window|select-and-scatter|sort)$"),
        ("control", r"^(parameter|constant|tuple|get-tuple-element|bitcast|after-all|(partition|replica)-id)$"),
        ("control", r"^(while|call|conditional)$"),
        ("data movement", r"^(slice|dynamic-slice|gather|dynamic-update-slice|copy(-start|-done)?|transpose|reshape)$"),
        ("data movement", r"^(broadcast|concatenate|scatter|pad|reverse|iota|convert|bitcast-convert)$"),
        ("other", r"^custom-call$"),
        ("elementwise", ""),
    ),
    # Of ONNX Runtime and OpenVINO, those that only they have among them.
    "onnx": (
        ("matmul", r"MatMul|Gemm$|^FullyConnected$|Attention|^(LSTM|GRU|RNN)(Seq|Cell|$)"),
        ("convolution", r"Conv(?!ert)|^Deconvolution$"),
        ("reduction", r"^Reduce|Pool|^(Log)?Softmax|^Arg(Max|Min)$|^TopK|^(Skip|Simplified)*LayerNorm|^(MVN|RMSNorm)"),
        ("control", r"^(Loop|Scan|If|TensorIterator|Shape(Of)?|Identity|((Un)?[Ss]queeze|Reshape|Flatten)$)"),
        (
            "data movement",
            r"^(Transpose|Reorder|Gather|Scatter|Concat|(Strided)?Slice|Split|Pad|Expand|Tile|Broadcast)",
        ),
        ("data movement", r"^(Cast|Convert|Range|Constant|Copy|MemoryCopy)"),
        ("elementwise", ""),
    ),
    # A kernel of a device that names no operation, in lower case.
    "kernel": (
        ("convolution", r"conv(?!ert)"),
        ("matmul", r"dot|matmul|gemm"),
        ("communication", r"all-reduce|all-gather|reduce-scatter|all-to-all|collective|nccl"),
        ("reduction", r"reduce"),
        ("data movement", r"copy|convert|memcpy|memset|transpose|data formatting|infeed|outfeed|gather|scatter"),
        ("elementwise", r"fusion|elementwise"),
        ("other", ""),
    ),
}

#: Those that multiply what is counted as a product.
PRODUCTS = ("matmul", "convolution")


@functools.cache
def categorise(language: str, name: str) -> str:
    """The category of an operation: matmul, convolution, elementwise, reduction, data movement, communication,
    control, other."""
    return next(category for category, pattern in _PATTERNS[language] if re.search(pattern, name))
