// The only use of the HDF5 C library: owned handles and one checked wrapper per call. Every wrapper
// throws TraceError with "file:/object: what failed", the library's innermost error and a hint.
// HDF5's own error printing is off. Internal to decode_record.
#pragma once

#include <hdf5.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "decode_record/base/error.h"
#include "decode_record/hdf5/library_lock.h"

namespace blockscope::h5 {

/// An owned HDF5 identifier; move-only. The destructor ignores errors; close() reports them.
template <herr_t (*Close)(hid_t)>
class H5Handle {
 public:
  H5Handle() = default;
  explicit H5Handle(hid_t id) : id_(id) {}
  H5Handle(H5Handle&& other) noexcept : id_(std::exchange(other.id_, H5I_INVALID_HID)) {}
  H5Handle& operator=(H5Handle&& other) noexcept {
    std::swap(id_, other.id_);
    return *this;
  }
  ~H5Handle() {
    if (id_ < 0) return;
    const LibraryGuard guard;
    Close(id_);
  }
  hid_t get() const { return id_; }
  explicit operator bool() const { return id_ >= 0; }
  /// Forgets the identifier without closing it.
  void abandon() { id_ = H5I_INVALID_HID; }
  /// Closes now; false when HDF5 reports an error.
  bool close() {
    const LibraryGuard guard;
    return id_ < 0 || Close(std::exchange(id_, H5I_INVALID_HID)) >= 0;
  }

 private:
  hid_t id_ = H5I_INVALID_HID;
};

using H5File = H5Handle<&H5Fclose>;
using H5Dataset = H5Handle<&H5Dclose>;
using H5Group = H5Handle<&H5Gclose>;
using H5Space = H5Handle<&H5Sclose>;
using H5Type = H5Handle<&H5Tclose>;
using H5Plist = H5Handle<&H5Pclose>;
using H5Attribute = H5Handle<&H5Aclose>;
static_assert(std::is_nothrow_move_constructible_v<H5File> &&
              !std::is_copy_constructible_v<H5File>);
static_assert(std::is_nothrow_move_assignable_v<H5File> && !std::is_copy_assignable_v<H5File>);

/// Version of the library that this process runs with, such as "1.10.8"; empty if unknown.
std::string library_version();

/// Element types. `bf16` and `f16` (IEEE binary16) are 16-bit HDF5 floats that any HDF5 reads as
/// float. `f64` is only for results, not for traces.
enum class Element : std::uint8_t { u8, i32, i64, f32, bf16, f16, f64 };
inline bool is_half(Element element) { return element == Element::bf16 || element == Element::f16; }
/// The value of a 16-bit word of a type that is_half().
float widen(Element element, std::uint16_t word);
std::size_t size_of(Element element);
std::string_view name_of(Element element);  ///< "u8", ..., "f16"

/// `read`: the file was closed, and nobody writes it. `swmr_read`: somebody may be writing it.
/// `dead_read`: its writer was killed, so a wrong checksum means damage and not a write in
/// progress.
enum class OpenMode : std::uint8_t { read, swmr_read, dead_read, swmr_write };

/// An open file, with its path for messages.
struct File {
  H5File handle;
  std::string path;
  bool prefetches = false;  ///< opened for reading, with the driver of h5_prefetch.h
  OpenMode mode = OpenMode::read;
  std::vector<std::string> merged_of;  ///< names, as JSON, of the files that it may refer to
};

/// A range of bytes in a file.
struct Place {
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};

/// A range of bytes with the file's descriptor, which is open as long as the file is.
struct OpenPlace {
  int descriptor = -1;
  Place place;
  std::string_view dataset;  ///< "file:/path"
};

/// Rows [first, first + rows) of a virtual dataset: all rows of the dataset of the same path in
/// another file.
struct VirtualPart {
  std::string file;  ///< as the virtual file names it: relative to its own folder, or absolute
  hsize_t first = 0;
  hsize_t rows = 0;
};

struct OpenPart;

/// An open dataset, with the facts that the calls below need.
struct Dataset {
  H5Dataset handle;
  std::string name;  ///< "file:/path"
  Element element = Element::u8;
  std::vector<hsize_t> extent;  ///< refreshed by set_extent and refresh
  std::vector<hsize_t> chunk;   ///< empty: contiguous
  bool filtered = false;
  H5Type type;                     ///< of the elements in the file
  std::vector<VirtualPart> parts;  ///< empty: not virtual
  std::vector<OpenPart> sources;   ///< [parts]; empty in one that was just created
  bool prefetches = false;         ///< see prefetch_chunk()
};

struct OpenPart {
  File file;  // outlives its dataset
  Dataset dataset;
};

/// A new file in the latest format (SWMR needs it); an existing one is truncated.
File create_file(const std::string& path);
/// `clear_flags` removes the mark of a writer that was killed (as h5clear -s does).
File open_file(const std::string& path, OpenMode mode, bool clear_flags = false);
void start_swmr_write(const File& file);
void flush(const File& file);
void close(File& file);
/// The descriptor that HDF5 reads the file with; open as long as the file is.
int descriptor(const File& file);

struct DatasetLayout {
  Element element = Element::u8;
  std::vector<hsize_t> extent;
  std::vector<hsize_t> chunk;  ///< empty: contiguous, fixed; else the first axis is unlimited
  int deflate = 0;             ///< 1-9: chunks are shuffled and deflated (repack only)
};
/// Creates the dataset and the groups above it. It has no chunk cache: writes go directly to the
/// file, so a flush never rewrites a half-filled chunk. Unwritten elements read as NaN, -1 or 0
/// (u8).
Dataset create_dataset(const File& file, const std::string& path, const DatasetLayout& layout);
/// A dataset of fixed extent with its rows in other files (a virtual dataset of HDF5).
Dataset create_virtual_dataset(const File& file, const std::string& path, Element element,
                               const std::vector<hsize_t>& extent,
                               const std::vector<VirtualPart>& parts);
bool exists(const File& file, const std::string& path);
/// Throws CorruptTrace if the path contains a link, or if the dataset uses external storage or a
/// filter that HDF5 would load. A virtual dataset may refer to the files of `merged_of`, by a
/// relative path. A missing dataset passes.
void check_inside(const File& file, const std::string& path);
/// Throws CorruptTrace unless the dataset has `element` and `rank` axes, and as check_inside(). For
/// a virtual dataset the parts are opened too and read directly, because HDF5 would give fill
/// values for a missing file. Throws TraceError if a part is missing or its number of rows has
/// changed.
Dataset open_dataset(const File& file, const std::string& path, Element element, std::size_t rank);

void set_extent(Dataset& dataset, std::span<const hsize_t> extent);
/// Drops cached metadata of a dataset that somebody else is writing, and reads its extent again.
void refresh(Dataset& dataset);
void flush(const Dataset& dataset);

/// Writes or reads the box [start, start + count) from or into `data`. 16-bit floats are raw words
/// for write() and floats for read().
void write(const Dataset& dataset, std::span<const hsize_t> start, std::span<const hsize_t> count,
           const void* data);
void read(const Dataset& dataset, std::span<const hsize_t> start, std::span<const hsize_t> count,
          void* data);

/// As read(), but without conversion: 16-bit floats stay words.
void read_words(const Dataset& dataset, std::span<const hsize_t> start,
                std::span<const hsize_t> count, void* data);

/// Reads one whole unfiltered chunk as it is in the file. This is faster than read_words, which
/// sets up selections and compares types each time. `offset` is the chunk's first element, `bytes`
/// its size. False if there is no such chunk or it is stored differently; use read_words then.
bool read_chunk(const Dataset& dataset, std::span<const hsize_t> offset, void* data,
                std::size_t bytes);

/// Asks the system to load one unfiltered chunk into memory soon. From the first call on, the
/// system reads nothing else of the file ahead. No effect without such a chunk, or if the file was
/// not opened for reading only.
void prefetch_chunk(const Dataset& dataset, std::span<const hsize_t> offset);

/// Bytes that the dataset's elements take in the file.
std::uint64_t stored_bytes(const Dataset& dataset);

/// Stores one whole chunk; `offset` is its first element.
void write_chunk(const Dataset& dataset, std::span<const hsize_t> offset, const void* data,
                 std::size_t bytes);

/// Whether the chunk with element `offset` was ever written. Throws TraceError if the chunk index
/// can't be read: then it is unknown whether the chunk was written.
bool chunk_written(const Dataset& dataset, std::span<const hsize_t> offset);
/// The place of the chunk with element `offset`, even if it is after the end of the file; nullopt
/// if it was never written. Costs one look-up. Throws as chunk_written(). Only for files opened for
/// reading.
std::optional<Place> chunk_place(const Dataset& dataset, std::span<const hsize_t> offset);
/// The place of the box [start, start + count), if it is one unfiltered chunk of a file opened for
/// reading. For a virtual dataset, the place is in the file of its part. nullopt in all other
/// cases, and if the chunk doesn't exist or can't be looked up; use read_words then.
std::optional<OpenPlace> values_place(const Dataset& dataset, std::span<const hsize_t> start,
                                      std::span<const hsize_t> count);
/// First row of the last chunk in the index of a chunked dataset, even if it is outside the extent;
/// nullopt without chunks. Visits all chunks.
std::optional<hsize_t> last_chunk_row(const Dataset& dataset);
/// Where a contiguous dataset starts in the file; nullopt if nothing was written.
std::optional<std::uint64_t> contiguous_address(const Dataset& dataset);

/// Fixed-length attributes of the object at `path`.
void write_attribute(const File& file, const std::string& path, const std::string& name,
                     std::string_view value);
void write_attribute(const File& file, const std::string& path, const std::string& name,
                     std::int64_t value);
void write_attribute(const File& file, const std::string& path, const std::string& name,
                     double value);
/// nullopt if there is no such attribute, or if it isn't a fixed-length string or a number.
std::optional<std::string> read_string_attribute(const File& file, const std::string& path,
                                                 const std::string& name);
std::optional<std::int64_t> read_int_attribute(const File& file, const std::string& path,
                                               const std::string& name);
std::optional<double> read_double_attribute(const File& file, const std::string& path,
                                            const std::string& name);

/// Creates a group and the groups above it, unless they exist.
void create_group(const File& file, const std::string& path);
/// Writes a one-dimensional dataset of UTF-8 strings of any length.
Dataset write_strings(const File& file, const std::string& path,
                      std::span<const std::string> values);

/// Makes `scale` a dimension scale called `name` and attaches it to an axis.
void make_scale(const Dataset& scale, const std::string& name);
void attach_scale(const Dataset& dataset, const Dataset& scale, unsigned axis);

}  // namespace blockscope::h5
