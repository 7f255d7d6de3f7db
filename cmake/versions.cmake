# Reads cmake/versions.env, the one place where versions are pinned, into CMake variables, and
# names the third-party cache that scripts/setup.sh fills.
set(_versions_file "${CMAKE_CURRENT_LIST_DIR}/versions.env")
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${_versions_file}")
file(STRINGS "${_versions_file}" _lines REGEX "^[A-Z0-9_]+=")
foreach(_line IN LISTS _lines)
  string(REGEX MATCH "^([A-Z0-9_]+)=(.*)$" _ "${_line}")
  set(${CMAKE_MATCH_1} "${CMAKE_MATCH_2}")
endforeach()

if(DEFINED ENV{BLOCKSCOPE_CACHE})
  set(BLOCKSCOPE_CACHE "$ENV{BLOCKSCOPE_CACHE}")
elseif(DEFINED ENV{XDG_CACHE_HOME})
  set(BLOCKSCOPE_CACHE "$ENV{XDG_CACHE_HOME}/blockscope")
else()
  set(BLOCKSCOPE_CACHE "$ENV{HOME}/.cache/blockscope")
endif()
