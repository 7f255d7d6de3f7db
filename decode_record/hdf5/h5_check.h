// Turns HDF5's status codes into exceptions, for the wrappers of h5.h. Internal to h5*.cpp.
#pragma once

#include <string>
#include <string_view>

#include "decode_record/hdf5/h5.h"

namespace blockscope::h5 {

/// Called before any other call. Turns off the library's error printing (per thread, as the
/// thread-safe library has one error stack per thread) and its clean-up at exit. Handles close
/// everything. The library's own clean-up crashes the process if a full disk kept a file from being
/// closed.
void silence();

/// Throws TraceError with the innermost error of the library and a hint.
[[noreturn]] void fail(std::string_view where, std::string_view what);
hid_t check_id(hid_t id, std::string_view where, std::string_view what);
void check(herr_t status, std::string_view where, std::string_view what);

/// Throw CorruptTrace for an object that is reached by a link other than a hard link, and for a
/// dataset with values in other files or with filters that HDF5 would load. Nothing of a refused
/// object is read or written. A missing object passes.
void check_links(const File& file, const std::string& path);
void check_storage(const File& file, const H5Plist& plist, const std::string& where);

/// "file:/object".
std::string object_name(const File& file, std::string_view path);

/// The type of the elements in the file.
H5Type file_type(Element element);
/// Sets the value of unwritten elements: NaN, -1 or 0 (u8).
void set_fill_value(const H5Plist& plist, Element element, const std::string& where);

/// h5_virtual.cpp: the names of the files that a virtual dataset refers to.
std::vector<std::string> part_files(const H5Plist& plist, const std::string& where);
/// h5_virtual.cpp: fills `parts` and `sources` of a virtual dataset from its creation list.
void open_parts(const H5Plist& plist, const File& file, const std::string& path, Dataset& dataset);
/// Reads a box from the parts that contain it. `read_box` is read() or read_words().
using BoxReader = void(const Dataset&, std::span<const hsize_t>, std::span<const hsize_t>, void*);
void read_parts(const Dataset& dataset, std::span<const hsize_t> start,
                std::span<const hsize_t> count, void* data, std::size_t element_bytes,
                BoxReader* read_box);
bool part_chunk_written(const Dataset& dataset, std::span<const hsize_t> offset);
std::optional<OpenPlace> part_values_place(const Dataset& dataset, std::span<const hsize_t> start,
                                           std::span<const hsize_t> count);

}  // namespace blockscope::h5
