// Virtual datasets: the rows of a merged trace stay in the files that they were captured into. HDF5
// shows them to any reader as one dataset. This code opens and reads the parts directly, because
// HDF5 gives fill values, not an error, for a missing part.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "decode_record/hdf5/h5.h"
#include "decode_record/hdf5/h5_check.h"

namespace blockscope::h5 {
namespace {

constexpr std::size_t kMaxParts = 65536;

std::string part_name(const H5Plist& plist, std::size_t index, const std::string& where,
                      decltype(&H5Pget_virtual_filename) get) {
  const ssize_t length = get(plist.get(), index, nullptr, 0);
  check_id(static_cast<hid_t>(length), where, "read the parts");
  std::string name(static_cast<std::size_t>(length) + 1, '\0');
  get(plist.get(), index, name.data(), name.size());
  name.resize(static_cast<std::size_t>(length));
  return name;
}

VirtualPart read_part(const H5Plist& plist, std::size_t index, const std::string& path,
                      const Dataset& dataset) {
  const std::string& where = dataset.name;
  VirtualPart part;
  part.file = part_name(plist, index, where, H5Pget_virtual_filename);
  const std::string source = part_name(plist, index, where, H5Pget_virtual_dsetname);
  const H5Space space(check_id(H5Pget_virtual_vspace(plist.get(), index), where, "read the parts"));
  std::vector<hsize_t> start(dataset.extent.size());
  std::vector<hsize_t> end(dataset.extent.size());
  check(H5Sget_select_bounds(space.get(), start.data(), end.data()), where, "read the parts");
  part.first = start[0];
  part.rows = end[0] - start[0] + 1;
  bool whole = source == path && end[0] < dataset.extent[0];
  for (std::size_t i = 1; i < start.size(); ++i) {
    whole = whole && start[i] == 0 && end[i] + 1 == dataset.extent[i];
  }
  if (!whole) {
    throw CorruptTrace(
        fmt::format("{}: part {} is not made of whole rows of {} of another file. "
                    "HINT: the file was not written by Blockscope.",
                    where, index, path));
  }
  return part;
}

/// The part that holds row `row`.
std::size_t part_of(const Dataset& dataset, hsize_t row) {
  const auto behind = std::ranges::upper_bound(dataset.parts, row, {}, &VirtualPart::first);
  return static_cast<std::size_t>(behind - dataset.parts.begin()) - 1;
}

}  // namespace

std::vector<std::string> part_files(const H5Plist& plist, const std::string& where) {
  std::size_t count = 0;
  check(H5Pget_virtual_count(plist.get(), &count), where, "read the parts");
  std::vector<std::string> files;
  for (std::size_t i = 0; i < std::min(count, kMaxParts); ++i) {
    files.push_back(part_name(plist, i, where, H5Pget_virtual_filename));
  }
  return files;
}

Dataset create_virtual_dataset(const File& file, const std::string& path, Element element,
                               const std::vector<hsize_t>& extent,
                               const std::vector<VirtualPart>& parts) {
  const LibraryGuard guard;
  silence();
  const std::string where = object_name(file, path);
  const int rank = static_cast<int>(extent.size());
  const H5Space space(check_id(H5Screate_simple(rank, extent.data(), nullptr), where, "create"));
  const H5Plist plist(H5Pcreate(H5P_DATASET_CREATE));
  set_fill_value(plist, element, where);
  for (const VirtualPart& part : parts) {
    std::vector<hsize_t> start(extent.size(), 0);
    std::vector<hsize_t> count = extent;
    start[0] = part.first;
    count[0] = part.rows;
    const H5Space source(check_id(H5Screate_simple(rank, count.data(), nullptr), where, "create"));
    check(H5Sselect_hyperslab(space.get(), H5S_SELECT_SET, start.data(), nullptr, count.data(),
                              nullptr),
          where, "select rows");
    check(H5Pset_virtual(plist.get(), space.get(), part.file.c_str(), path.c_str(), source.get()),
          where, "refer to another file");
  }
  const H5Plist links(H5Pcreate(H5P_LINK_CREATE));
  check(H5Pset_create_intermediate_group(links.get(), 1), where, "create groups");
  H5Type type = file_type(element);
  check(H5Sselect_all(space.get()), where, "select rows");
  H5Dataset handle(check_id(H5Dcreate2(file.handle.get(), path.c_str(), type.get(), space.get(),
                                       links.get(), plist.get(), H5P_DEFAULT),
                            where, "create"));
  return Dataset{std::move(handle), where, element, extent, {}, false, std::move(type), parts, {}};
}

void open_parts(const H5Plist& plist, const File& file, const std::string& path, Dataset& dataset) {
  std::size_t count = 0;
  check(H5Pget_virtual_count(plist.get(), &count), dataset.name, "read the parts");
  hsize_t next = 0;
  for (std::size_t i = 0; i < std::min(count, kMaxParts); ++i) {
    dataset.parts.push_back(read_part(plist, i, path, dataset));
    const VirtualPart& part = dataset.parts.back();
    const std::string name =
        (std::filesystem::absolute(file.path).parent_path() / part.file).lexically_normal();
    const auto refuse = [&](const std::string& what) {
      throw TraceError(fmt::format(
          "{}: its rows {} to {} are in {}: {}. HINT: a merged trace reads the files it was made "
          "from; put them back where they were, or merge them again (with --copy for a file that "
          "needs no other).",
          dataset.name, part.first, part.first + part.rows - 1, name, what));
    };
    if (!std::filesystem::exists(name)) refuse("there is no such file");
    if (part.first != next) refuse("the rows are not consecutive");
    next = part.first + part.rows;
    try {
      File other = open_file(name, OpenMode::read);  // must not refer to a third file
      Dataset opened = open_dataset(other, path, dataset.element, dataset.extent.size());
      dataset.sources.push_back({std::move(other), std::move(opened)});
    } catch (const TraceError& error) {
      refuse(error.what());
    }
    const Dataset& source = dataset.sources.back().dataset;
    if (source.extent[0] != part.rows ||
        !std::equal(source.extent.begin() + 1, source.extent.end(), dataset.extent.begin() + 1)) {
      refuse(fmt::format("it has {} rows now", source.extent[0]));
    }
  }
  if (next != dataset.extent[0]) {
    throw CorruptTrace(
        fmt::format("{}: its parts hold {} of {} rows", dataset.name, next, dataset.extent[0]));
  }
}

void read_parts(const Dataset& dataset, std::span<const hsize_t> start,
                std::span<const hsize_t> count, void* data, std::size_t element_bytes,
                BoxReader* read_box) {
  std::size_t row_bytes = element_bytes;
  for (std::size_t i = 1; i < count.size(); ++i) row_bytes *= count[i];
  std::vector<hsize_t> from(start.begin(), start.end());
  std::vector<hsize_t> box(count.begin(), count.end());
  auto* to = static_cast<std::byte*>(data);
  const hsize_t end = start[0] + count[0];
  for (hsize_t row = start[0]; row < end; row += box[0]) {
    const std::size_t index = part_of(dataset, row);
    const VirtualPart& part = dataset.parts[index];
    from[0] = row - part.first;
    box[0] = std::min(part.first + part.rows, end) - row;
    read_box(dataset.sources.at(index).dataset, from, box, to);
    to += box[0] * row_bytes;
  }
}

bool part_chunk_written(const Dataset& dataset, std::span<const hsize_t> offset) {
  const std::size_t index = part_of(dataset, offset[0]);
  const Dataset& source = dataset.sources.at(index).dataset;
  std::vector<hsize_t> there(offset.begin(), offset.end());
  there[0] -= dataset.parts[index].first;
  for (std::size_t i = 0; i < there.size(); ++i) there[i] -= there[i] % source.chunk.at(i);
  return chunk_written(source, there);
}

std::optional<OpenPlace> part_values_place(const Dataset& dataset, std::span<const hsize_t> start,
                                           std::span<const hsize_t> count) {
  const std::size_t index = part_of(dataset, start[0]);
  std::vector<hsize_t> there(start.begin(), start.end());
  there[0] -= dataset.parts[index].first;
  return values_place(dataset.sources.at(index).dataset, there, count);
}

}  // namespace blockscope::h5
