#include "command_line/host.h"

namespace blockscope {
namespace {

CommandHost* current = nullptr;

}  // namespace

CommandHost* command_host() { return current; }

HostScope::HostScope(CommandHost& host) { current = &host; }
HostScope::~HostScope() { current = nullptr; }

}  // namespace blockscope
