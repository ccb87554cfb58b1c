// arrow_shim.cpp - the functions of Arrow GLib that src/data/parquet.c calls, over the C++ libraries of pyarrow, which
// has no GLib.
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <new>
#include <string>

#include <arrow/c/abi.h>
#include <arrow/c/bridge.h>
#include <arrow/io/file.h>
#include <arrow/record_batch.h>
#include <arrow/table.h>
#include <parquet/arrow/reader.h>
#include <parquet/file_reader.h>

namespace
{

struct Error {
    uint32_t domain;
    int code;
    char *message;
};

struct Object {
    std::unique_ptr<parquet::arrow::FileReader> reader;
    std::shared_ptr<arrow::Table> table;
    std::shared_ptr<arrow::RecordBatchReader> batches;
};

template <typename T>
bool good(const arrow::Result<T> &result, Error **error)
{
    if (result.ok())
        return true;
    *error = new Error{1, 1, strdup(result.status().ToString().c_str())};
    return false;
}

} // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT Object *gparquet_arrow_file_reader_new_path(const char *path, Error **error)
{
    auto file = arrow::io::MemoryMappedFile::Open(path, arrow::io::FileMode::READ);

    if (!good(file, error))
        return nullptr;
    auto reader = parquet::arrow::OpenFile(*file, arrow::default_memory_pool());
    if (!good(reader, error))
        return nullptr;
    return new Object{std::move(*reader), nullptr, nullptr};
}

EXPORT int gparquet_arrow_file_reader_get_n_row_groups(Object *object)
{
    return object->reader->num_row_groups();
}

EXPORT Object *gparquet_arrow_file_reader_read_row_group(Object *object, int group, int *, size_t, Error **error)
{
    auto table = object->reader->ReadRowGroup(group);

    return good(table, error) ? new Object{nullptr, *table, nullptr} : nullptr;
}

EXPORT Object *garrow_table_batch_reader_new(Object *object)
{
    return new Object{nullptr, nullptr, std::make_shared<arrow::TableBatchReader>(*object->table)};
}

EXPORT ArrowArrayStream *garrow_record_batch_reader_export(Object *object, Error **)
{
    auto *stream = static_cast<ArrowArrayStream *>(calloc(1, sizeof(struct ArrowArrayStream)));

    return arrow::ExportRecordBatchReader(object->batches, stream).ok() ? stream : nullptr;
}

EXPORT void g_object_unref(Object *object)
{
    delete object;
}

EXPORT void g_error_free(Error *error)
{
    free(error->message);
    delete error;
}

EXPORT void g_free(void *memory)
{
    free(memory);
}
