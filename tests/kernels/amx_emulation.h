// AMX on CPUs that have none: the tile instructions of the shipped object code trap there, and what
// they should do is done instead, from their definitions in Intel's Software Developer's Manual.
//
// TileUnit is the definition: shapes, faults and products. install_amx_traps() feeds it what traps,
// a unit for each thread. Where the processor executes an instruction itself, nothing traps.
#pragma once

#include <array>
#include <cstdint>

namespace blockscope::testing {

/// The tiles of one thread. Whatever would fault throws std::logic_error and says why; memory is
/// read and written byte for byte where the instruction does.
class TileUnit {
 public:
  void load_config(const void* bytes64);
  void release();
  void zero(int tile);
  void load(int tile, const char* memory, int64_t stride);
  void store(int tile, char* memory, int64_t stride) const;
  /// TDPBF16PS: sums += a b.
  void add_products(int sums, int a, int b);
  bool has_config() const { return has_config_; }

 private:
  struct Tile {
    int rows = 0, row_bytes = 0;
    alignas(64) std::array<std::array<char, 64>, 16> data{};
  };
  Tile& configured(int tile);

  bool has_config_ = false;
  std::array<Tile, 8> tiles_;
};

/// From now on this process can execute LDTILECFG, TILERELEASE, TILEZERO, TILELOADD, TILESTORED and
/// TDPBF16PS. What would fault on hardware ends the process with a message.
void install_amx_traps();

/// TDPBF16PS that trapped so far, of all threads.
int64_t emulated_tile_products();

/// Whether this thread's emulated tiles are configured.
bool emulated_tiles_are_configured();

}  // namespace blockscope::testing
