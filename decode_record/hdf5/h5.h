// The only door to the HDF5 C library: owned handles and one checked wrapper per call. Every
// wrapper throws TraceError with "file:/object: what failed", the library's innermost error and a
// hint. HDF5's own error printing is off. Internal to decode_record.
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

namespace blockscope::h5 {

/// An owned HDF5 identifier; moves only. The destructor ignores errors: close() reports them.
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
    if (id_ >= 0) Close(id_);
  }
  hid_t get() const { return id_; }
  explicit operator bool() const { return id_ >= 0; }
  /// Forgets the identifier without closing it.
  void abandon() { id_ = H5I_INVALID_HID; }
  /// Closes now; false when HDF5 reports an error.
  bool close() { return id_ < 0 || Close(std::exchange(id_, H5I_INVALID_HID)) >= 0; }

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

/// Version of the library this process runs with, such as "1.10.8"; empty if it won't say.
std::string library_version();

/// Element types. `bf16` is a 16-bit HDF5 float that any HDF5 reads as float; `f64` is for results,
/// no trace has it.
enum class Element : std::uint8_t { u8, i32, i64, f32, bf16, f64 };
std::size_t size_of(Element element);
std::string_view name_of(Element element);  ///< "u8", ..., "bf16"

/// `read`: nobody writes it, and it was closed. `swmr_read`: somebody may be writing it.
/// `dead_read`: its writer was killed, so that a checksum that is wrong is damage and not a write
/// under way.
enum class OpenMode : std::uint8_t { read, swmr_read, dead_read, swmr_write };

/// A file with its path, for messages.
struct File {
  H5File handle;
  std::string path;
  bool prefetches = false;  ///< opened for reading, with the driver of h5_prefetch.h
  OpenMode mode = OpenMode::read;
  std::vector<std::string> merged_of;  ///< names, as JSON, of the files that it may refer to
};

/// Where bytes lie in a file.
struct Place {
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};

/// The same with the file's descriptor, which is open as long as the file is.
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

/// A dataset with what the calls below need to know about it.
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
/// Creates the dataset and the groups above it, without a chunk cache: writes go straight to the
/// file, byte for byte, so that a flush never rewrites a half-filled chunk. Unwritten elements read
/// as NaN, -1 or 0 (u8).
Dataset create_dataset(const File& file, const std::string& path, const DatasetLayout& layout);
/// A dataset of fixed extent whose rows lie in other files (HDF5's virtual datasets).
Dataset create_virtual_dataset(const File& file, const std::string& path, Element element,
                               const std::vector<hsize_t>& extent,
                               const std::vector<VirtualPart>& parts);
bool exists(const File& file, const std::string& path);
/// Throws CorruptTrace where the values of a dataset lie elsewhere: behind a link, in external
/// storage, or behind a filter that HDF5 would load. A virtual dataset may refer to the files of
/// `merged_of`, by a relative path. One that is missing passes.
void check_inside(const File& file, const std::string& path);
/// Throws CorruptTrace unless the dataset has `element` and `rank` axes, and as check_inside(). The
/// parts of a virtual one are opened too, and read directly: HDF5 would give fill values for a file
/// that is missing. Throws TraceError when one is missing or has other rows than it had.
Dataset open_dataset(const File& file, const std::string& path, Element element, std::size_t rank);

void set_extent(Dataset& dataset, std::span<const hsize_t> extent);
/// Forgets cached metadata of a dataset somebody else is writing, and reads its extent anew.
void refresh(Dataset& dataset);
void flush(const Dataset& dataset);

/// Writes or reads the box [start, start + count) from `data`; bf16 elements are raw words when
/// writing and floats when reading.
void write(const Dataset& dataset, std::span<const hsize_t> start, std::span<const hsize_t> count,
           const void* data);
void read(const Dataset& dataset, std::span<const hsize_t> start, std::span<const hsize_t> count,
          void* data);

/// The same as read() without conversion: bf16 elements stay 16-bit words.
void read_words(const Dataset& dataset, std::span<const hsize_t> start,
                std::span<const hsize_t> count, void* data);

/// Reads one whole unfiltered chunk as it lies in the file, without the selections and the type
/// comparison that read_words sets up each time. `offset` is its first element, `bytes` its size.
/// False when there is no such chunk or it isn't stored that way: read_words then knows what to do.
bool read_chunk(const Dataset& dataset, std::span<const hsize_t> offset, void* data,
                std::size_t bytes);

/// Asks the system to have one unfiltered chunk in memory soon, and from the first call on not to
/// guess what else of the file may be wanted. No effect where there is no such chunk, or the file
/// was not opened for reading only.
void prefetch_chunk(const Dataset& dataset, std::span<const hsize_t> offset);

/// Bytes the dataset's elements take in the file.
std::uint64_t stored_bytes(const Dataset& dataset);

/// Stores one whole chunk; `offset` is its first element.
void write_chunk(const Dataset& dataset, std::span<const hsize_t> offset, const void* data,
                 std::size_t bytes);

/// Whether the chunk with element `offset` was ever written. Throws TraceError when the index of
/// the chunks can't be read: a chunk that can't be found is not one that was never written.
bool chunk_written(const Dataset& dataset, std::span<const hsize_t> offset);
/// Where the chunk with element `offset` lies, also behind the end of the file; nullopt when it was
/// never written. One look-up. Throws as chunk_written(). Only for files opened for reading.
std::optional<Place> chunk_place(const Dataset& dataset, std::span<const hsize_t> offset);
/// Where the box [start, start + count) lies as it is, if it is one unfiltered chunk of a file
/// opened for reading; of a virtual dataset, in the file of its part. nullopt otherwise, and where
/// there is no such chunk or it can't be looked up: read_words then knows what to do.
std::optional<OpenPlace> values_place(const Dataset& dataset, std::span<const hsize_t> start,
                                      std::span<const hsize_t> count);
/// First row of the last chunk that the index of a chunked dataset knows, beyond its extent too;
/// nullopt without any. Walks through all chunks.
std::optional<hsize_t> last_chunk_row(const Dataset& dataset);
/// Where a contiguous dataset starts; nullopt when nothing was written.
std::optional<std::uint64_t> contiguous_address(const Dataset& dataset);

/// Fixed-length attributes of the object at `path`.
void write_attribute(const File& file, const std::string& path, const std::string& name,
                     std::string_view value);
void write_attribute(const File& file, const std::string& path, const std::string& name,
                     std::int64_t value);
void write_attribute(const File& file, const std::string& path, const std::string& name,
                     double value);
/// nullopt when there is no such attribute, or it isn't a fixed-length string / a number.
std::optional<std::string> read_string_attribute(const File& file, const std::string& path,
                                                 const std::string& name);
std::optional<std::int64_t> read_int_attribute(const File& file, const std::string& path,
                                               const std::string& name);
std::optional<double> read_double_attribute(const File& file, const std::string& path,
                                            const std::string& name);

/// A group and the groups above it; nothing happens where it exists.
void create_group(const File& file, const std::string& path);
/// A one-dimensional dataset of UTF-8 strings of any length.
Dataset write_strings(const File& file, const std::string& path,
                      std::span<const std::string> values);

/// Makes `scale` a dimension scale called `name` and attaches it to an axis.
void make_scale(const Dataset& scale, const std::string& name);
void attach_scale(const Dataset& dataset, const Dataset& scale, unsigned axis);

}  // namespace blockscope::h5
