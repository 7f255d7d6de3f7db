// How the wrappers of h5.h turn HDF5's status codes into exceptions. Internal to h5*.cpp.
#pragma once

#include <string>
#include <string_view>

#include "decode_record/hdf5/h5.h"

namespace blockscope::h5 {

/// Before any other call: no printing (per thread, as is the error stack of the thread-safe
/// library), and no clean-up at exit. Handles close everything; the library's own clean-up crashes
/// the process when a file could not be closed because its disk is full.
void silence();

/// Throws TraceError with the innermost error of the library and a hint.
[[noreturn]] void fail(std::string_view where, std::string_view what);
hid_t check_id(hid_t id, std::string_view where, std::string_view what);
void check(herr_t status, std::string_view where, std::string_view what);

/// Throw CorruptTrace for an object that a link other than a hard one leads to, and for a dataset
/// whose values are in other files or need code that HDF5 would load. Nothing of what is refused is
/// read or written. An object that is missing passes.
void check_links(const File& file, const std::string& path);
void check_storage(const File& file, const H5Plist& plist, const std::string& where);

/// "file:/object".
std::string object_name(const File& file, std::string_view path);

/// The type elements have in the file.
H5Type file_type(Element element);
/// What unwritten elements read as: NaN, -1 or 0 (u8).
void set_fill_value(const H5Plist& plist, Element element, const std::string& where);

/// h5_virtual.cpp: the files that a virtual dataset refers to, by the names it gives them.
std::vector<std::string> part_files(const H5Plist& plist, const std::string& where);
/// h5_virtual.cpp: fills `parts` and `sources` of a dataset whose creation list says it is virtual.
void open_parts(const H5Plist& plist, const File& file, const std::string& path, Dataset& dataset);
/// Reads a box with `read_box`, read() or read_words(), from the parts it lies in.
using BoxReader = void(const Dataset&, std::span<const hsize_t>, std::span<const hsize_t>, void*);
void read_parts(const Dataset& dataset, std::span<const hsize_t> start,
                std::span<const hsize_t> count, void* data, std::size_t element_bytes,
                BoxReader* read_box);
bool part_chunk_written(const Dataset& dataset, std::span<const hsize_t> offset);
std::optional<OpenPlace> part_values_place(const Dataset& dataset, std::span<const hsize_t> start,
                                           std::span<const hsize_t> count);

}  // namespace blockscope::h5
