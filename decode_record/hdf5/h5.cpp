#include "decode_record/hdf5/h5.h"

#include <fmt/format.h>

#include <bit>
#include <limits>

#include "decode_record/base/error.h"
#include "decode_record/hdf5/h5_check.h"
#include "decode_record/hdf5/h5_prefetch.h"
#include "decode_record/hdf5/h5_superblock.h"

namespace blockscope::h5 {
std::string library_version() {
  const LibraryGuard guard;
  unsigned major = 0;
  unsigned minor = 0;
  unsigned release = 0;
  return H5get_libversion(&major, &minor, &release) < 0
             ? std::string()
             : fmt::format("{}.{}.{}", major, minor, release);
}

std::string object_name(const File& file, std::string_view path) {
  return fmt::format("{}:{}", file.path, path);
}

H5Type file_type(Element element) {
  silence();
  switch (element) {
    case Element::u8:
      return H5Type(H5Tcopy(H5T_STD_U8LE));
    case Element::i32:
      return H5Type(H5Tcopy(H5T_STD_I32LE));
    case Element::i64:
      return H5Type(H5Tcopy(H5T_STD_I64LE));
    case Element::f32:
      return H5Type(H5Tcopy(H5T_IEEE_F32LE));
    case Element::f64:
      return H5Type(H5Tcopy(H5T_IEEE_F64LE));
    case Element::bf16:
    case Element::f16:
      break;
  }
  // bfloat16 is the upper half of a float32; IEEE binary16 has 5 bits of exponent and 10 of
  // mantissa. Set the fields before the size, or HDF5 refuses the size.
  const bool brain = element == Element::bf16;
  const char* const name = brain ? "bfloat16 type" : "float16 type";
  H5Type type(H5Tcopy(H5T_IEEE_F32LE));
  check(brain ? H5Tset_fields(type.get(), 15, 7, 8, 0, 7)
              : H5Tset_fields(type.get(), 15, 10, 5, 0, 10),
        name, "set fields");
  check(H5Tset_precision(type.get(), 16), name, "set precision");
  check(H5Tset_size(type.get(), 2), name, "set size");
  check(H5Tset_ebias(type.get(), brain ? 127 : 15), name, "set exponent bias");
  return type;
}

float widen(Element element, std::uint16_t word) {
  if (element == Element::bf16) return std::bit_cast<float>(std::uint32_t{word} << 16U);
  const std::uint32_t sign = std::uint32_t{word & 0x8000U} << 16U;
  const std::uint32_t exponent = (word >> 10U) & 31U;
  const std::uint32_t mantissa = word & 1023U;
  std::uint32_t bits = (exponent + 112U) << 23U | mantissa << 13U;
  if (exponent == 31U) bits = 0x7F800000U | mantissa << 13U;
  if (exponent == 0U) bits = std::bit_cast<std::uint32_t>(static_cast<float>(mantissa) * 0x1p-24F);
  return std::bit_cast<float>(sign | bits);
}

namespace {

/// Access without a chunk cache (see create_dataset).
H5Plist uncached(const std::string& where) {
  H5Plist plist(H5Pcreate(H5P_DATASET_ACCESS));
  check(H5Pset_chunk_cache(plist.get(), 1, 0, H5D_CHUNK_CACHE_W0_DEFAULT), where, "set up");
  return plist;
}

H5Space box(const Dataset& dataset, std::span<const hsize_t> start,
            std::span<const hsize_t> count) {
  H5Space space(check_id(H5Dget_space(dataset.handle.get()), dataset.name, "get the extent"));
  if (start.empty()) return space;  // a scalar
  check(H5Sselect_hyperslab(space.get(), H5S_SELECT_SET, start.data(), nullptr, count.data(),
                            nullptr),
        dataset.name, "select rows");
  return space;
}

}  // namespace

void set_fill_value(const H5Plist& plist, Element element, const std::string& where) {
  const std::int64_t minus_one = -1;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  if (element == Element::i32 || element == Element::i64) {
    check(H5Pset_fill_value(plist.get(), H5T_NATIVE_INT64, &minus_one), where, "set fill value");
  } else if (element != Element::u8) {
    // As raw words: this avoids HDF5's conversion of a NaN to a custom float.
    const H5Type type = file_type(element);
    const std::uint16_t nan16 = element == Element::bf16 ? 0x7FC0 : 0x7E00;
    const double nan64 = std::numeric_limits<double>::quiet_NaN();
    const void* value = &nan;
    if (is_half(element)) value = &nan16;
    if (element == Element::f64) value = &nan64;
    check(H5Pset_fill_value(plist.get(), type.get(), value), where, "set fill value");
  }
}

std::size_t size_of(Element element) {
  switch (element) {
    case Element::u8:
      return 1;
    case Element::bf16:
    case Element::f16:
      return 2;
    case Element::i64:
    case Element::f64:
      return 8;
    case Element::i32:
    case Element::f32:
      break;
  }
  return 4;
}

std::string_view name_of(Element element) {
  switch (element) {
    case Element::u8:
      return "u8";
    case Element::i32:
      return "i32";
    case Element::i64:
      return "i64";
    case Element::f32:
      return "f32";
    case Element::f64:
      return "f64";
    case Element::f16:
      return "f16";
    case Element::bf16:
      break;
  }
  return "bf16";
}

File create_file(const std::string& path) {
  const LibraryGuard guard;
  silence();
  const H5Plist access(H5Pcreate(H5P_FILE_ACCESS));
  check(H5Pset_libver_bounds(access.get(), H5F_LIBVER_LATEST, H5F_LIBVER_LATEST), path, "set up");
  check(H5Pset_fclose_degree(access.get(), H5F_CLOSE_SEMI), path, "set up");
  // H5Fstart_swmr_write opens every dataset again with the file's defaults. Without this setting
  // each one gets a cache of 1 MB, which fills during a run.
  check(H5Pset_cache(access.get(), 0, 1, 0, 0.75), path, "set up");
  H5File handle(check_id(H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, access.get()), path,
                         "create the file"));
  return File{std::move(handle), path, false, OpenMode::swmr_write, {}};
}

File open_file(const std::string& path, OpenMode mode, bool clear_flags) {
  const LibraryGuard guard;
  silence();
  const H5Plist access(H5Pcreate(H5P_FILE_ACCESS));
  check(H5Pset_fclose_degree(access.get(), H5F_CLOSE_SEMI), path, "set up");
  check(H5Pset_cache(access.get(), 0, 1, 0, 0.75), path, "set up");  // used after H5Drefresh too
  unsigned flags = H5F_ACC_RDONLY;
  if (mode == OpenMode::swmr_read || mode == OpenMode::dead_read) flags |= H5F_ACC_SWMR_READ;
  if (mode == OpenMode::swmr_write) flags = H5F_ACC_RDWR | H5F_ACC_SWMR_WRITE;
  // A wrong checksum may mean a write in progress: HDF5 reads again after 1 ns, 2 ns, 4 ns... With
  // its default of 100 attempts, even a SWMR writer sleeps forever on a damaged file. 27 attempts
  // take 0.13 s. Without another writer the first answer is right.
  const unsigned attempts = mode == OpenMode::swmr_read ? 27 : 1;
  check(H5Pset_metadata_read_attempts(access.get(), attempts), path, "set up");
  const bool prefetches = mode != OpenMode::swmr_write && set_reading_driver(access);
  if (mode != OpenMode::read) {
    check(H5Pset_libver_bounds(access.get(), H5F_LIBVER_LATEST, H5F_LIBVER_LATEST), path, "set up");
  }
  if (clear_flags) {
    // The property h5clear sets; it has no macro in the public headers.
    const hbool_t clear = true;
    check(H5Pset(access.get(), "clear_status_flags", &clear), path, "set up");
  }
  const hid_t opened = H5Fopen(path.c_str(), flags, access.get());
  if (opened < 0) {
    if (const auto cut = cut_off(path)) {
      throw CorruptTrace(
          fmt::format("{}: expected {} bytes, as its superblock says, got {}: the file was cut "
                      "off. HINT: copy it "
                      "again; if enough is left to open it, `blockscope repack --repair` keeps the "
                      "rows that are whole",
                      path, cut->expected, cut->bytes));
    }
  }
  H5File handle(check_id(opened, path, "open the file"));
  if (mode == OpenMode::swmr_write) {
    // A writer that is killed between two flushes may have written metadata after the superblock's
    // end of file. HDF5 then refuses to read it ("addr overflow"). As h5clear --increment=0.
    check(H5Fincrement_filesize(handle.get(), 0), path, "restore the end of the file");
  }
  return File{std::move(handle), path, prefetches, mode, {}};
}

void start_swmr_write(const File& file) {
  const LibraryGuard guard;
  silence();
  check(H5Fstart_swmr_write(file.handle.get()), file.path, "start SWMR writing");
}

void flush(const File& file) {
  const LibraryGuard guard;
  silence();
  check(H5Fflush(file.handle.get(), H5F_SCOPE_LOCAL), file.path, "flush");
}

void close(File& file) {
  const LibraryGuard guard;
  silence();
  if (!file.handle.close()) fail(file.path, "close the file");
}

int descriptor(const File& file) {
  const LibraryGuard guard;
  silence();
  void* handle = nullptr;
  check(H5Fget_vfd_handle(file.handle.get(), H5P_DEFAULT, &handle), file.path, "ask for the file");
  return *static_cast<const int*>(handle);
}

Dataset create_dataset(const File& file, const std::string& path, const DatasetLayout& layout) {
  const LibraryGuard guard;
  silence();
  const std::string where = object_name(file, path);
  std::vector<hsize_t> max_extent = layout.extent;
  if (!layout.chunk.empty()) max_extent.at(0) = H5S_UNLIMITED;
  const int rank = static_cast<int>(layout.extent.size());
  const H5Space space(
      check_id(H5Screate_simple(rank, layout.extent.data(), max_extent.data()), where, "create"));
  const H5Plist plist(H5Pcreate(H5P_DATASET_CREATE));
  if (!layout.chunk.empty()) {
    check(H5Pset_chunk(plist.get(), rank, layout.chunk.data()), where, "set chunk");
    check(H5Pset_alloc_time(plist.get(), H5D_ALLOC_TIME_INCR), where, "set allocation");
    if (layout.deflate > 0) {
      check(H5Pset_shuffle(plist.get()), where, "set shuffle");
      check(H5Pset_deflate(plist.get(), static_cast<unsigned>(layout.deflate)), where,
            "set deflate");
    }
  } else {
    check(H5Pset_alloc_time(plist.get(), H5D_ALLOC_TIME_EARLY), where, "set allocation");
  }
  set_fill_value(plist, layout.element, where);
  const H5Plist links(H5Pcreate(H5P_LINK_CREATE));
  check(H5Pset_create_intermediate_group(links.get(), 1), where, "create groups");
  H5Type type = file_type(layout.element);
  const H5Plist access = uncached(where);
  // Without HDF5's default cache each write would inflate its chunk again.
  if (layout.deflate > 0) {
    check(H5Pset_chunk_cache(access.get(), 521, 1U << 20U, 0.75), where, "set up");
  }
  H5Dataset handle(check_id(H5Dcreate2(file.handle.get(), path.c_str(), type.get(), space.get(),
                                       links.get(), plist.get(), access.get()),
                            where, "create"));
  return Dataset{std::move(handle), where,        layout.element,
                 layout.extent,     layout.chunk, !layout.chunk.empty() && layout.deflate > 0,
                 std::move(type),   {},           {}};
}

Dataset open_dataset(const File& file, const std::string& path, Element element, std::size_t rank) {
  const LibraryGuard guard;
  silence();
  const std::string where = object_name(file, path);
  Dataset dataset;
  dataset.name = where;
  dataset.element = element;
  dataset.prefetches = file.prefetches;
  check_links(file, path);
  const H5Plist access = uncached(where);
  dataset.handle = H5Dataset(
      check_id(H5Dopen2(file.handle.get(), path.c_str(), access.get()), where, "open the dataset"));
  const H5Plist plist(
      check_id(H5Dget_create_plist(dataset.handle.get()), where, "read the storage"));
  check_storage(file, plist, where);  // before HDF5 opens a virtual dataset's files for its extent
  const H5Type found(check_id(H5Dget_type(dataset.handle.get()), where, "read the type"));
  dataset.type = file_type(element);
  if (H5Tequal(found.get(), dataset.type.get()) <= 0) {
    throw CorruptTrace(
        fmt::format("{}: the element type is not the one of schema 1. HINT: the "
                    "file is damaged or was not written by Blockscope.",
                    where));
  }
  const H5Space space(check_id(H5Dget_space(dataset.handle.get()), where, "read the extent"));
  const int found_rank = H5Sget_simple_extent_ndims(space.get());
  if (found_rank != static_cast<int>(rank)) {
    throw CorruptTrace(
        fmt::format("{}: expected {} axes, got {}. HINT: the file is damaged or "
                    "was not written by Blockscope.",
                    where, rank, found_rank));
  }
  dataset.extent.resize(rank);
  check(H5Sget_simple_extent_dims(space.get(), dataset.extent.data(), nullptr), where,
        "read the extent");
  if (H5Pget_layout(plist.get()) == H5D_CHUNKED) {
    dataset.chunk.resize(rank);
    check(H5Pget_chunk(plist.get(), found_rank, dataset.chunk.data()), where, "read the chunks");
  }
  if (H5Pget_layout(plist.get()) == H5D_VIRTUAL) open_parts(plist, file, path, dataset);
  dataset.filtered = H5Pget_nfilters(plist.get()) != 0;
  if (dataset.filtered) {
    // With a cache, because without it every access to a compressed chunk would decompress it
    // again.
    check(H5Pset_chunk_cache(access.get(), 521, 1U << 20U, 0.75), where, "set up");
    dataset.handle = H5Dataset(check_id(H5Dopen2(file.handle.get(), path.c_str(), access.get()),
                                        where, "open the dataset"));
  }
  return dataset;
}

void set_extent(Dataset& dataset, std::span<const hsize_t> extent) {
  const LibraryGuard guard;
  silence();
  check(H5Dset_extent(dataset.handle.get(), extent.data()), dataset.name, "change the extent");
  dataset.extent.assign(extent.begin(), extent.end());
}

void refresh(Dataset& dataset) {
  const LibraryGuard guard;
  silence();
  check(H5Drefresh(dataset.handle.get()), dataset.name, "refresh");
  const H5Space space(check_id(H5Dget_space(dataset.handle.get()), dataset.name, "refresh"));
  if (H5Sget_simple_extent_ndims(space.get()) != static_cast<int>(dataset.extent.size())) {
    throw CorruptTrace(dataset.name + ": the number of axes changed while reading");
  }
  check(H5Sget_simple_extent_dims(space.get(), dataset.extent.data(), nullptr), dataset.name,
        "refresh");
}

void flush(const Dataset& dataset) {
  const LibraryGuard guard;
  silence();
  check(H5Dflush(dataset.handle.get()), dataset.name, "flush");
}

void write(const Dataset& dataset, std::span<const hsize_t> start, std::span<const hsize_t> count,
           const void* data) {
  const LibraryGuard guard;
  silence();
  const H5Space target = box(dataset, start, count);
  const H5Space source(
      check_id(H5Screate_simple(static_cast<int>(count.size()), count.data(), nullptr),
               dataset.name, "write"));
  const H5Type type = file_type(dataset.element);
  check(H5Dwrite(dataset.handle.get(), type.get(), source.get(), target.get(), H5P_DEFAULT, data),
        dataset.name, "write");
}

void read(const Dataset& dataset, std::span<const hsize_t> start, std::span<const hsize_t> count,
          void* data) {
  const LibraryGuard guard;
  silence();
  if (!dataset.parts.empty()) {
    const Element element = is_half(dataset.element) ? Element::f32 : dataset.element;
    return read_parts(dataset, start, count, data, size_of(element), &read);
  }
  const H5Space source = box(dataset, start, count);
  const H5Space target(
      check_id(H5Screate_simple(static_cast<int>(count.size()), count.data(), nullptr),
               dataset.name, "read"));
  const H5Type type = file_type(is_half(dataset.element) ? Element::f32 : dataset.element);
  check(H5Dread(dataset.handle.get(), type.get(), target.get(), source.get(), H5P_DEFAULT, data),
        dataset.name, "read");
}

void read_words(const Dataset& dataset, std::span<const hsize_t> start,
                std::span<const hsize_t> count, void* data) {
  const LibraryGuard guard;
  silence();
  if (!dataset.parts.empty()) {
    return read_parts(dataset, start, count, data, size_of(dataset.element), &read_words);
  }
  const H5Space source = box(dataset, start, count);
  const H5Space target(
      check_id(H5Screate_simple(static_cast<int>(count.size()), count.data(), nullptr),
               dataset.name, "read"));
  check(H5Dread(dataset.handle.get(), dataset.type.get(), target.get(), source.get(), H5P_DEFAULT,
                data),
        dataset.name, "read");
}

bool read_chunk(const Dataset& dataset, std::span<const hsize_t> offset, void* data,
                std::size_t bytes) {
  const LibraryGuard guard;
  silence();
  hsize_t stored = 0;
  std::uint32_t filters = 0;
  // The library trusts the size in the file, so compare it with the buffer's size first.
  const bool read =
      !dataset.filtered &&
      H5Dget_chunk_storage_size(dataset.handle.get(), offset.data(), &stored) >= 0 &&
      stored == bytes &&
      H5Dread_chunk(dataset.handle.get(), H5P_DEFAULT, offset.data(), &filters, data) >= 0;
  if (!read) H5Eclear2(H5E_DEFAULT);
  return read && filters == 0;
}

void prefetch_chunk(const Dataset& dataset, std::span<const hsize_t> offset) {
  const LibraryGuard guard;
  if (!dataset.prefetches || dataset.filtered || dataset.chunk.empty()) return;
  silence();
  const DriverMode prefetching(DriverMode::Kind::prefetch);
  std::uint32_t filters = 0;
  std::byte unused{};  // HDF5 needs a buffer, but writes nothing to it
  H5Dread_chunk(dataset.handle.get(), H5P_DEFAULT, offset.data(), &filters, &unused);
  H5Eclear2(H5E_DEFAULT);
}

std::uint64_t stored_bytes(const Dataset& dataset) {
  const LibraryGuard guard;
  return H5Dget_storage_size(dataset.handle.get());
}

void write_chunk(const Dataset& dataset, std::span<const hsize_t> offset, const void* data,
                 std::size_t bytes) {
  const LibraryGuard guard;
  silence();
  check(H5Dwrite_chunk(dataset.handle.get(), H5P_DEFAULT, 0, offset.data(), bytes, data),
        dataset.name, "write a chunk");
}

}  // namespace blockscope::h5
