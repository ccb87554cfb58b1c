/* launch.h - what a launch becomes: it is linked with launch_now.cpp, where a kernel has run when it is launched, or
 * with fakecuda/fake_launch.cpp, where it runs later, on a stream. */
#pragma once

#include <type_traits>

/* A kind of kernel with its arguments, which are copied as bytes. */
struct cudash_body {
    size_t bytes;
    void (*run)(const unsigned grid[3], unsigned block, size_t shared_bytes, const void *body);
};

fsdp_status cudash_issue(fsdp_stream *stream, const char *name, const void *kernel, dim3 grid, unsigned block,
                         size_t shared_bytes, const cudash_body *kind, const void *body);

template <class Body>
static void cudash_run_body(const unsigned grid[3], unsigned block, size_t shared_bytes, const void *body)
{
    cudash_run(
        dim3(grid[0], grid[1], grid[2]), block, shared_bytes, [](const void *b) { (*(const Body *)b)(); }, body);
}

template <class Body>
static fsdp_status cudash_launch(fsdp_stream *stream, const char *name, const void *kernel, dim3 grid, unsigned block,
                                 size_t shared_bytes, const Body &body)
{
    static const cudash_body kind = {sizeof body, cudash_run_body<Body>};

    static_assert(std::is_trivially_copyable<Body>::value, "the arguments of a kernel are copied as bytes");
    FSDP_TRY(cudash_check_launch(name, grid, block, shared_bytes));
    return cudash_issue(stream, name, kernel, grid, block, shared_bytes, &kind, &body);
}

/* Sets bytes of the device, in stream order. */
extern "C" fsdp_status fsdp__cuda_set_bytes(fsdp_stream *stream, void *device, int byte, size_t bytes);
