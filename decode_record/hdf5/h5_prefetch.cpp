#include "decode_record/hdf5/h5_prefetch.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <utility>

namespace blockscope::h5 {
namespace {

thread_local DriverMode::Kind mode = DriverMode::Kind::read;
thread_local std::optional<OpenPlace> last_place;
thread_local std::optional<BehindEnd> behind_end;

}  // namespace

DriverMode::DriverMode(Kind kind) {
  mode = kind;
  last_place.reset();
}
DriverMode::~DriverMode() { mode = Kind::read; }
std::optional<OpenPlace> DriverMode::located() { return last_place; }

std::optional<BehindEnd> take_behind_end() { return std::exchange(behind_end, std::nullopt); }

#if H5_VERSION_GE(1, 13, 0)

bool set_reading_driver(const H5Plist& /*access*/) { return false; }

#else

namespace {

/// HDF5's record of an open file. Its own part comes first.
struct OpenedFile {
  H5FD_t base;
  H5FD_t* file;         // of HDF5's default driver
  bool scattered;       // the kernel was told not to read ahead
  std::uint64_t bytes;  // length of the file when it was last looked at; a live one grows
};

OpenedFile& opened(H5FD_t* file) { return *reinterpret_cast<OpenedFile*>(file); }
H5FD_t* inner(H5FD_t* file) { return opened(file).file; }
H5FD_t* inner(const H5FD_t* file) { return reinterpret_cast<const OpenedFile*>(file)->file; }

H5FD_t* open(const char* name, unsigned flags, hid_t /*access*/, haddr_t max_address) {
  H5FD_t* file = H5FDopen(name, flags, H5P_DEFAULT, max_address);
  if (file == nullptr) return nullptr;
  return &(new OpenedFile{{}, file, false, 0})->base;
}

herr_t close(H5FD_t* file) {
  const std::unique_ptr<OpenedFile> owner(&opened(file));
  return H5FDclose(owner->file);
}

/// Every opening counts as a different file. Else two openings of one file would share metadata,
/// and H5Drefresh renews it for one of them only: the other then finds no chunks.
int compare(const H5FD_t* a, const H5FD_t* b) {
  if (a == b) return 0;
  return std::less<>()(a, b) ? -1 : 1;
}

herr_t query(const H5FD_t* file, unsigned long* flags) {
  // HDF5 also asks for the driver's flags before there is a file.
  return file == nullptr ? 0 : H5FDquery(inner(file), flags);
}

haddr_t end_of_allocation(const H5FD_t* file, H5FD_mem_t type) {
  return H5FDget_eoa(inner(file), type);
}

herr_t set_end_of_allocation(H5FD_t* file, H5FD_mem_t type, haddr_t address) {
  return H5FDset_eoa(inner(file), type, address);
}

haddr_t end_of_file(const H5FD_t* file, H5FD_mem_t type) { return H5FDget_eof(inner(file), type); }

herr_t get_handle(H5FD_t* file, hid_t access, void** handle) {
  return H5FDget_vfd_handle(inner(file), access, handle);
}

int descriptor(H5FD_t* file) {
  void* handle = nullptr;
  return H5FDget_vfd_handle(inner(file), H5P_DEFAULT, &handle) < 0
             ? -1
             : *static_cast<const int*>(handle);
}

bool lies_in_file(H5FD_t* file, haddr_t address, size_t size) {
  std::uint64_t& bytes = opened(file).bytes;
  const auto inside = [&] { return address <= bytes && size <= bytes - address; };
  if (inside()) return true;
  struct stat status = {};
  if (::fstat(descriptor(file), &status) == 0) bytes = static_cast<std::uint64_t>(status.st_size);
  return inside();
}

void prefetch(H5FD_t* file, haddr_t address, size_t size) {
  const int fd = descriptor(file);
  if (fd < 0) return;
  if (!opened(file).scattered) ::posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM);
  opened(file).scattered = true;
  ::posix_fadvise(fd, static_cast<off_t>(address), static_cast<off_t>(size), POSIX_FADV_WILLNEED);
}

herr_t read(H5FD_t* file, H5FD_mem_t type, hid_t transfer, haddr_t address, size_t size,
            void* buffer) {
  // Metadata has checksums, which detect zeros read after the end of the file.
  if (type != H5FD_MEM_DRAW) {
    return H5FDread(inner(file), type, transfer, address, size, buffer);
  }
  switch (mode) {
    case DriverMode::Kind::prefetch:
      prefetch(file, address, size);
      return 0;
    case DriverMode::Kind::locate:
      last_place = OpenPlace{descriptor(file), {address, size}, {}};
      return 0;
    case DriverMode::Kind::read:
      break;
  }
  if (!lies_in_file(file, address, size)) {
    behind_end = BehindEnd{{address, size}, opened(file).bytes};
    return -1;
  }
  return H5FDread(inner(file), type, transfer, address, size, buffer);
}

herr_t write(H5FD_t*, H5FD_mem_t, hid_t, haddr_t, size_t, const void*) { return -1; }
herr_t flush(H5FD_t*, hid_t, hbool_t) { return 0; }
herr_t lock(H5FD_t* file, hbool_t writes) { return H5FDlock(inner(file), writes); }
herr_t unlock(H5FD_t* file) { return H5FDunlock(inner(file)); }

constexpr H5FD_class_t kDriver{
    .name = "reading",
    .maxaddr = static_cast<haddr_t>(std::numeric_limits<std::int64_t>::max()),
    .fc_degree = H5F_CLOSE_WEAK,
    .terminate = nullptr,
    .sb_size = nullptr,
    .sb_encode = nullptr,
    .sb_decode = nullptr,
    .fapl_size = 0,
    .fapl_get = nullptr,
    .fapl_copy = nullptr,
    .fapl_free = nullptr,
    .dxpl_size = 0,
    .dxpl_copy = nullptr,
    .dxpl_free = nullptr,
    .open = &open,
    .close = &close,
    .cmp = &compare,
    .query = &query,
    .get_type_map = nullptr,
    .alloc = nullptr,
    .free = nullptr,
    .get_eoa = &end_of_allocation,
    .set_eoa = &set_end_of_allocation,
    .get_eof = &end_of_file,
    .get_handle = &get_handle,
    .read = &read,
    .write = &write,
    .flush = &flush,
    .truncate = nullptr,
    .lock = &lock,
    .unlock = &unlock,
    .fl_map = H5FD_FLMAP_DICHOTOMY,
};

}  // namespace

bool set_reading_driver(const H5Plist& access) {
  static const hid_t driver = H5FDregister(&kDriver);
  return driver >= 0 && H5Pset_driver(access.get(), driver, nullptr) >= 0;
}

#endif

}  // namespace blockscope::h5
