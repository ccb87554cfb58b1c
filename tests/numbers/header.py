"""What index.py, layers.py and ops.py write their headers with: named tensors as arrays of C."""

import torch

tensors = []


def put(name, tensor):
    tensors.append((name, list(tensor.shape), tensor.detach().float().reshape(-1).tolist()))


def number(value):
    text = f"{value:.9g}"
    special = {"inf": "INFINITY", "-inf": "-INFINITY", "nan": "NAN"}
    return special.get(text, text + ("f" if "." in text or "e" in text else ".0f"))


def write(file, struct, array, dims=4, includes=("stdint.h",)):
    """Prints `file`.h: all that was put, as an `array` of `struct`."""
    guard = f"TESTS_NUMBERS_{file.upper()}_H"
    print(f"/* numbers/{file}.h - made by {file}.py with PyTorch", torch.__version__.split("+")[0] + ". */")
    print(f"#ifndef {guard}\n#define {guard}\n")
    for include in includes:
        print(f"#include <{include}>")
    print(f"\ntypedef struct {struct} {{\n    const char *name;\n    int ndim;\n    int64_t shape[{dims}];\n"
          f"    const float *data;\n}} {struct};\n")
    print(f"/* clang-format off */\nstatic const {struct} {array}[] = {{")
    for name, shape, values in tensors:
        sizes = ", ".join(map(str, shape)) or "0"
        print(f'{{"{name}", {len(shape)}, {{{sizes}}}, (const float[]){{')
        text = [number(v) for v in values]
        for at in range(0, len(text), 8):
            print("    " + ", ".join(text[at:at + 8]) + ",")
        print("}},")
    print("};\n/* clang-format on */\n\n#endif")
