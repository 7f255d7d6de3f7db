// The numbers of a device that predicted_time.h computes with. Given devices and files of users
// have one format: a JSON object whose numbers each have a value and a source.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace blockscope {

/// Rates are per second, sizes in bytes. An efficiency is the share of a rate that code attains.
struct DeviceNumbers {
  std::string device;                   // a description
  double memory_bytes = 0.0;            // of one device
  double memory_bandwidth = 0.0;        // peak, bytes a second
  double bandwidth_efficiency = 0.0;    // 0 < e <= 1
  std::map<std::string, double> flops;  // peak of products by dtype, FLOP a second
  double product_efficiency = 0.0;      // of weights with a block's rows, 0 < e <= 1
  double attention_efficiency = 0.0;    // of attention, 0 < e <= 1
  double launch_seconds = 0.0;          // cost of a kernel in addition to its work
  double cache_bytes = 0.0;             // a pass that reads less has cache_bandwidth; 0: none
  double cache_bandwidth = 0.0;         // attained, bytes a second
  double link_bandwidth = 0.0;          // to another device, each direction; 0: unknown
  double link_seconds = 0.0;            // cost of a sum over devices in addition to its bytes
};

/// Reads `text`; `where` names it in messages. Throws CheckpointError for a missing or unknown key,
/// a value of another type, a number that is not positive, and a number without a source.
DeviceNumbers parse_device_numbers(const std::string& text, const std::string& where);

/// The numbers of a given device, or of a file. Throws UsageError listing the names.
DeviceNumbers device_numbers(const std::string& name_or_file);

bool is_given_device(const std::string& name);
/// The names of the given devices.
std::vector<std::string> device_names();

}  // namespace blockscope
