"""Writes layers.npy and layers.txt: what layers of torch.nn compute: state, outputs, gradients, buffers after two
steps, evaluation.

    python tests/numbers/layers.py

The gradients are those of sum(weights * output), of the first of two forwards in training; buffers are those after
both; the evaluation comes last."""

import torch
from torch import nn

import tensors
from tensors import put

torch.manual_seed(14)


def layer(name, module, *inputs, **arguments):
    """Runs a layer. Floating inputs are leaves, and parameters get other values than their first ones."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape) * 0.5)
    for key, value in module.state_dict().items():
        put(f"{name}.state.{key}", value)
    leaves = [x.clone().requires_grad_() for x in inputs]
    y = module(*leaves, **arguments)
    y = y[0] if isinstance(y, tuple) else y
    weights = torch.randn(y.shape)
    (weights * y).sum().backward()
    put(f"{name}.y", y)
    put(f"{name}.w", weights)
    for index, leaf in enumerate(leaves):
        put(f"{name}.x{index}", leaf)
        put(f"{name}.dx{index}", leaf.grad)
    for key, parameter in module.named_parameters():
        put(f"{name}.grad.{key}", parameter.grad)
    with torch.no_grad():
        module(*[x * 2 + 1 for x in inputs], **arguments)
        for key, value in module.named_buffers():
            put(f"{name}.after.{key}", value)
        module.eval()
        y = module(*inputs, **arguments)
        put(f"{name}.eval", y[0] if isinstance(y, tuple) else y)


def rand(*shape):
    return torch.randn(*shape)


layer("conv2d", nn.Conv2d(3, 4, 3), rand(2, 3, 5, 6))
layer("conv2d_options", nn.Conv2d(4, 6, (3, 2), stride=(2, 1), padding=(1, 2), dilation=(1, 2), groups=2, bias=False),
      rand(2, 4, 5, 4))
layer("max_pool2d", nn.MaxPool2d(2), rand(2, 2, 5, 4))
layer("max_pool2d_options", nn.MaxPool2d((3, 2), stride=(1, 2), padding=(1, 0), dilation=(1, 2)), rand(2, 2, 5, 4))
layer("avg_pool2d", nn.AvgPool2d(3, stride=2, padding=1), rand(2, 2, 5, 4))
layer("avg_pool2d_options", nn.AvgPool2d((3, 2), stride=(1, 2), padding=(1, 1), count_include_pad=False),
      rand(2, 2, 5, 4))
layer("adaptive_avg_pool2d", nn.AdaptiveAvgPool2d((2, 3)), rand(2, 2, 5, 4))
layer("flatten", nn.Flatten(), rand(2, 3, 2, 2))
layer("group_norm", nn.GroupNorm(2, 4), rand(2, 4, 3, 2))
layer("batch_norm1d", nn.BatchNorm1d(3), rand(5, 3))
layer("batch_norm1d_rows", nn.BatchNorm1d(3, momentum=None), rand(4, 3, 2))
layer("batch_norm2d", nn.BatchNorm2d(3, eps=1e-3, momentum=0.3), rand(3, 3, 2, 3))
layer("batch_norm2d_plain", nn.BatchNorm2d(3, affine=False), rand(3, 3, 2, 2))
layer("batch_norm2d_batch", nn.BatchNorm2d(3, track_running_stats=False), rand(3, 3, 2, 2))

later = torch.ones(4, 4).triu(1).bool()
padding = torch.tensor([[False, False, False, True], [False, False, True, True]])
added = rand(4, 4)
put("masks.later", later)
put("masks.padding", padding)
put("masks.added", added)
x = rand(2, 4, 6)


class SelfAttention(nn.MultiheadAttention):
    def forward(self, x, **arguments):
        return super().forward(x, x, x, **arguments)


layer("self_attention", SelfAttention(6, 2, batch_first=True), x)
layer("self_attention_causal", SelfAttention(6, 2, batch_first=True), x, attn_mask=later)
layer("self_attention_masked", SelfAttention(6, 2, batch_first=True), x, attn_mask=later, key_padding_mask=padding)
layer("self_attention_added", SelfAttention(6, 3, bias=False), x.transpose(0, 1), attn_mask=added)
layer("cross_attention", nn.MultiheadAttention(6, 3), rand(3, 2, 6), rand(5, 2, 6), rand(5, 2, 6))
layer("cross_attention_padded", nn.MultiheadAttention(6, 2, batch_first=True), rand(2, 3, 6), x, rand(2, 4, 6),
      key_padding_mask=padding)
layer("encoder_layer", nn.TransformerEncoderLayer(6, 2, 7, dropout=0.0, batch_first=True), x)
layer("encoder_layer_first", nn.TransformerEncoderLayer(6, 3, 5, dropout=0.0, activation="gelu", norm_first=True),
      x.transpose(0, 1), src_mask=later)
layer("encoder", nn.TransformerEncoder(nn.TransformerEncoderLayer(6, 2, 5, dropout=0.0, batch_first=True), 2,
                                       norm=nn.LayerNorm(6), enable_nested_tensor=False),
      x, src_key_padding_mask=padding)
layer("sigmoid", nn.Sigmoid(), rand(3, 5))
layer("tanh", nn.Tanh(), rand(3, 5))

tensors.write("layers")
