// Finds the values of a dataset in the file by its chunk index.
#include <algorithm>

#include "decode_record/hdf5/h5.h"
#include "decode_record/hdf5/h5_check.h"
#include "decode_record/hdf5/h5_prefetch.h"

namespace blockscope::h5 {
namespace {

/// For a chunk that was never written, HDF5 1.10 gives an error, not 0. Any other error means that
/// the look-up failed.
bool says_never_written() {
  bool found = false;
  const auto visit = [](unsigned, const H5E_error2_t* error, void* out) -> herr_t {
    const std::string_view text = error->desc == nullptr ? "" : error->desc;
    if (text == "chunk storage is not allocated" || text == "chunk address isn't defined" ||
        text == "storage is not initialized") {
      *static_cast<bool*>(out) = true;
    }
    return 0;
  };
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_DOWNWARD, visit, &found);
  if (found) H5Eclear2(H5E_DEFAULT);
  return found;
}

}  // namespace

bool chunk_written(const Dataset& dataset, std::span<const hsize_t> offset) {
  const LibraryGuard guard;
  silence();
  if (!dataset.parts.empty()) return part_chunk_written(dataset, offset);
  hsize_t bytes = 0;
  if (H5Dget_chunk_storage_size(dataset.handle.get(), offset.data(), &bytes) >= 0) {
    return bytes != 0;
  }
  if (says_never_written()) return false;
  fail(dataset.name, "look up a chunk");
}

std::optional<Place> chunk_place(const Dataset& dataset, std::span<const hsize_t> offset) {
  const LibraryGuard guard;
  silence();
  const DriverMode locating(DriverMode::Kind::locate);
  std::uint32_t filters = 0;
  std::byte unused{};  // HDF5 wants a buffer; nothing is written to it
  if (H5Dread_chunk(dataset.handle.get(), H5P_DEFAULT, offset.data(), &filters, &unused) >= 0) {
    if (const auto found = DriverMode::located()) return found->place;
    return std::nullopt;
  }
  if (says_never_written()) return std::nullopt;
  fail(dataset.name, "look up a chunk");
}

std::optional<OpenPlace> values_place(const Dataset& dataset, std::span<const hsize_t> start,
                                      std::span<const hsize_t> count) {
  const LibraryGuard guard;
  if (!dataset.parts.empty()) return part_values_place(dataset, start, count);
  if (!dataset.prefetches || dataset.filtered || !std::ranges::equal(dataset.chunk, count)) {
    return std::nullopt;
  }
  silence();
  const DriverMode locating(DriverMode::Kind::locate);
  std::uint32_t filters = 0;
  std::byte unused{};  // HDF5 wants a buffer; nothing is written to it
  if (H5Dread_chunk(dataset.handle.get(), H5P_DEFAULT, start.data(), &filters, &unused) < 0) {
    H5Eclear2(H5E_DEFAULT);
    return std::nullopt;
  }
  std::optional<OpenPlace> found = DriverMode::located();
  if (!found || found->descriptor < 0 || filters != 0) return std::nullopt;
  found->dataset = dataset.name;
  return found;
}

std::optional<hsize_t> last_chunk_row(const Dataset& dataset) {
  const LibraryGuard guard;
  silence();
  const H5Space space(
      check_id(H5Dget_space(dataset.handle.get()), dataset.name, "read the extent"));
  hsize_t count = 0;
  check(H5Dget_num_chunks(dataset.handle.get(), space.get(), &count), dataset.name,
        "count the chunks");
  if (count == 0) return std::nullopt;
  std::vector<hsize_t> offset(dataset.extent.size());
  unsigned filters = 0;
  haddr_t address = 0;
  hsize_t bytes = 0;
  check(H5Dget_chunk_info(dataset.handle.get(), space.get(), count - 1, offset.data(), &filters,
                          &address, &bytes),
        dataset.name, "look up the last chunk");
  return offset.front();
}

std::optional<std::uint64_t> contiguous_address(const Dataset& dataset) {
  const LibraryGuard guard;
  const haddr_t address = H5Dget_offset(dataset.handle.get());
  H5Eclear2(H5E_DEFAULT);
  if (address == HADDR_UNDEF) return std::nullopt;
  return address;
}

}  // namespace blockscope::h5
