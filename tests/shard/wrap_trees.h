/* shard/wrap_trees.h - the two module trees for which PyTorch's units are known (its README names them MyModel and
 * Enc), as shapes on the meta device. Their forwards are never run. */
#pragma once

#include "fsdp/nn.h"
#include "support/test.h"

/* block1 = MySubModule(Linear(10,20), ReLU)
 * block2 = Sequential(Linear(20,30), ReLU, MySubModule(Linear(30,40), ReLU))     output_layer = Linear(40,5) */
fsdp_module *my_model_create(fsdp_context *context);
/* emb = Embedding(50,16)     layers = ModuleList of 3 TransformerEncoderLayer(d 16, heads 2, ffn 32)
 * experts = ModuleDict{a: Linear(16,64), b: Linear(16,64)}     norm = LayerNorm(16)     head = Linear(16,50) */
fsdp_module *enc_create(fsdp_context *context);
/* A module of its own type, without parameters. */
fsdp_module *wrap_tree_part(fsdp_context *context, const fsdp_module_type *type);
void wrap_tree_add(fsdp_module *parent, const char *name, fsdp_module *child);
