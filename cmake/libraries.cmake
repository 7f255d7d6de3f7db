# C and C++ libraries: the system's where its version fits, else one built from a pinned source archive. It is
# built once, into the cache (BLOCKSCOPE_CACHE), as a static library. An archive is taken from the folder
# BLOCKSCOPE_SOURCES if it lies there, otherwise it is downloaded; its SHA-256 is checked in both cases.
set(BLOCKSCOPE_LIBRARIES "AUTO" CACHE STRING
  "Where C and C++ libraries come from: AUTO (the system's where they fit), SYSTEM or BUNDLED")
set_property(CACHE BLOCKSCOPE_LIBRARIES PROPERTY STRINGS AUTO SYSTEM BUNDLED)
set(BLOCKSCOPE_SOURCES "$ENV{BLOCKSCOPE_SOURCES}" CACHE PATH "Folder with source archives, for a machine without a network")

# Conda keeps its libraries in a place of its own.
if(DEFINED ENV{CONDA_PREFIX})
  list(APPEND CMAKE_PREFIX_PATH "$ENV{CONDA_PREFIX}")
endif()

# Source archives as Debian keeps them. The second address keeps every version for ever.
set(_blockscope_mirrors
  "https://deb.debian.org/debian/pool/main"
  "https://snapshot.debian.org/archive/debian/20250520T000000Z/pool/main")

# Puts the path of an archive, checked, into the variable `result`.
function(blockscope_archive path sha256 result)
  get_filename_component(name "${path}" NAME)
  set(file "${BLOCKSCOPE_SOURCES}/${name}")
  if(BLOCKSCOPE_SOURCES AND EXISTS "${file}")
    file(SHA256 "${file}" found)
    if(NOT found STREQUAL sha256)
      message(FATAL_ERROR "${file}: expected SHA-256 ${sha256}, found ${found}. HINT: fetch it again")
    endif()
    set(${result} "${file}" PARENT_SCOPE)
    return()
  endif()
  set(file "${BLOCKSCOPE_CACHE}/archives/${name}")
  if(NOT EXISTS "${file}")
    set(tried "")
    foreach(mirror IN LISTS _blockscope_mirrors)
      string(RANDOM LENGTH 8 suffix)
      message(STATUS "Downloading ${name}")
      file(DOWNLOAD "${mirror}/${path}" "${file}.${suffix}" STATUS status INACTIVITY_TIMEOUT 60)
      list(GET status 0 code)
      if(code EQUAL 0)
        file(SHA256 "${file}.${suffix}" found)
        if(found STREQUAL sha256)
          file(RENAME "${file}.${suffix}" "${file}")
          break()
        endif()
        string(APPEND tried "\n  ${mirror}/${path}: expected SHA-256 ${sha256}, found ${found}")
      else()
        list(GET status 1 reason)
        string(APPEND tried "\n  ${mirror}/${path}: ${reason}")
      endif()
      file(REMOVE "${file}.${suffix}")
    endforeach()
    if(NOT EXISTS "${file}")
      message(FATAL_ERROR "${name} could not be downloaded:${tried}\n  HINT: put it into a folder and set "
                          "BLOCKSCOPE_SOURCES to that folder, or install the library with apt or conda")
    endif()
  endif()
  set(${result} "${file}" PARENT_SCOPE)
endfunction()

# blockscope_build(<name> ARCHIVE <path> SHA256 <sum> [HEADERS <folder in the archive>] [OPTIONS -D...])
# Builds and installs a library into a folder of the cache, and puts that folder into <name>_PREFIX. HEADERS: nothing
# is compiled; the folder is the include path. EMPTY: a file that the archive asks for and does not hold. Its licences
# are put into <name>_PREFIX/licenses, which a wheel takes.
function(blockscope_build name)
  cmake_parse_arguments(arg "" "ARCHIVE;SHA256;HEADERS;EMPTY" "OPTIONS" ${ARGN})
  # What decides the result is in the folder's name: another compiler, target or option is another folder.
  string(SHA256 key "${arg_SHA256} ${arg_OPTIONS} ${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION} ${CMAKE_CXX_COMPILER_TARGET} 3")
  string(SUBSTRING "${key}" 0 12 key)
  set(prefix "${BLOCKSCOPE_CACHE}/libraries/${name}-${key}")
  set(${name}_PREFIX "${prefix}" PARENT_SCOPE)
  set_property(GLOBAL APPEND PROPERTY BLOCKSCOPE_BUILT ${name} "${prefix}")
  file(LOCK "${BLOCKSCOPE_CACHE}/libraries.lock" GUARD FUNCTION TIMEOUT 1800)
  if(EXISTS "${prefix}/.complete")
    return()
  endif()
  blockscope_archive("${arg_ARCHIVE}" "${arg_SHA256}" archive)
  set(work "${prefix}.work")
  file(REMOVE_RECURSE "${work}" "${prefix}")
  file(ARCHIVE_EXTRACT INPUT "${archive}" DESTINATION "${work}/source")
  file(GLOB source "${work}/source/*")  # the one folder that archives hold
  if(arg_EMPTY)
    file(WRITE "${source}/${arg_EMPTY}" "")
  endif()
  file(GLOB licenses "${source}/LICEN[CS]E*" "${source}/COPYING*")
  list(FILTER licenses EXCLUDE REGEX "/LICENSES$|GPL$")  # GPL: Eigen's, of files that are not used
  file(COPY ${licenses} DESTINATION "${prefix}/licenses")
  if(arg_HEADERS)
    file(COPY "${source}/${arg_HEADERS}/" DESTINATION "${prefix}/include")
  else()
    message(STATUS "Building ${name} (once)")
    include(ProcessorCount)
    ProcessorCount(jobs)
    file(MAKE_DIRECTORY "${work}/build")
    # HDF5 leaves a function without its type, which clang and GCC 14 take for an error, and names its files in errors.
    set(flags "-w -ffile-prefix-map=${work}/=")
    set(c_flags "${flags} -Wno-error=implicit-int")
    foreach(step
        "-S;${source};-B;${work}/build;-G;${CMAKE_GENERATOR};-DCMAKE_BUILD_TYPE=Release;-DCMAKE_INSTALL_PREFIX=${prefix};-DCMAKE_INSTALL_LIBDIR=lib;-DCMAKE_POSITION_INDEPENDENT_CODE=ON;-DBUILD_SHARED_LIBS=OFF;-DCMAKE_C_FLAGS=${c_flags};-DCMAKE_CXX_FLAGS=${flags};-DCMAKE_POLICY_VERSION_MINIMUM=3.5;-DCMAKE_C_COMPILER=${CMAKE_C_COMPILER};-DCMAKE_CXX_COMPILER=${CMAKE_CXX_COMPILER};-DCMAKE_C_COMPILER_TARGET=${CMAKE_C_COMPILER_TARGET};-DCMAKE_CXX_COMPILER_TARGET=${CMAKE_CXX_COMPILER_TARGET};-DCMAKE_MAKE_PROGRAM=${CMAKE_MAKE_PROGRAM};${arg_OPTIONS}"
        "--build;${work}/build;--target;install;--parallel;${jobs}")
      # HDF5 leaves what it finds out in the folder it is configured from.
      execute_process(COMMAND "${CMAKE_COMMAND}" ${step} WORKING_DIRECTORY "${work}/build" OUTPUT_FILE "${prefix}.log" ERROR_FILE "${prefix}.log"
        RESULT_VARIABLE status)
      if(NOT status EQUAL 0)
        message(FATAL_ERROR "${name} could not be built. Its output is in ${prefix}.log. "
                            "HINT: install the library with apt or conda instead")
      endif()
    endforeach()
  endif()
  file(REMOVE_RECURSE "${work}")
  file(TOUCH "${prefix}/.complete")
endfunction()

# blockscope_imported(<target> <name> [<file in lib/>] [LINK <target>...]): an imported target of what
# blockscope_build(<name>) made.
function(blockscope_imported target name)
  cmake_parse_arguments(arg "" "" "LINK" ${ARGN})
  if(arg_UNPARSED_ARGUMENTS)
    add_library(${target} STATIC IMPORTED GLOBAL)
    set_target_properties(${target} PROPERTIES IMPORTED_LOCATION "${${name}_PREFIX}/lib/${arg_UNPARSED_ARGUMENTS}")
  else()
    add_library(${target} INTERFACE IMPORTED GLOBAL)
  endif()
  target_include_directories(${target} SYSTEM INTERFACE "${${name}_PREFIX}/include")
  target_link_libraries(${target} INTERFACE ${arg_LINK})
endfunction()

# Refuses a library that is not there where only the system's libraries are wanted.
function(blockscope_require name version found)
  if(NOT found AND BLOCKSCOPE_LIBRARIES STREQUAL "SYSTEM")
    message(FATAL_ERROR "${name} ${version} or newer: not found on this system. HINT: install it, or configure "
                        "with -DBLOCKSCOPE_LIBRARIES=AUTO, which builds it")
  endif()
endfunction()

# blockscope_system(<package> <version> [COMPONENTS ...]): find_package(); sets <package>_FOUND.
macro(blockscope_system package version)
  set(${package}_FOUND FALSE)
  if(NOT BLOCKSCOPE_LIBRARIES STREQUAL "BUNDLED")
    find_package(${package} ${version} QUIET ${ARGN})
  endif()
  blockscope_require(${package} ${version} "${${package}_FOUND}")
endmacro()

# The same for the libraries that systems describe with pkg-config; the target is <name>::<name>.
macro(blockscope_pkg_config name module version)
  set(${name}_FOUND FALSE)
  if(PkgConfig_FOUND AND NOT BLOCKSCOPE_LIBRARIES STREQUAL "BUNDLED")
    pkg_check_modules(${name} QUIET IMPORTED_TARGET GLOBAL "${module}>=${version}")
  endif()
  if(${name}_FOUND)
    add_library(${name}::${name} ALIAS PkgConfig::${name})
  endif()
  blockscope_require(${name} ${version} "${${name}_FOUND}")
endmacro()

# ZLIB::ZLIB, and in ZLIB_OPTIONS what a library that uses it is configured with.
macro(blockscope_zlib)
  if(NOT TARGET ZLIB::ZLIB)
    blockscope_system(ZLIB 1.2)
    set(ZLIB_OPTIONS "")
    if(NOT ZLIB_FOUND)
      set(ZLIB_LINK "")
      # Its shared library, which nobody uses, lists a symbol that it lacks. LLD refuses that, and Zig links with LLD.
      if(CMAKE_CXX_COMPILER_TARGET)
        set(ZLIB_LINK -DCMAKE_SHARED_LINKER_FLAGS=-Wl,--undefined-version)
      endif()
      blockscope_build(ZLIB ARCHIVE z/zlib/zlib_1.2.13.dfsg.orig.tar.bz2
        SHA256 71feb7947e3c00ef125f83b79a4e529bde31171e5babe48b391f06758d1ab0a1 EMPTY win32/zlib1.rc
        OPTIONS ${ZLIB_LINK})
      blockscope_imported(ZLIB::ZLIB ZLIB libz.a)
      set(ZLIB_OPTIONS "-DZLIB_INCLUDE_DIR=${ZLIB_PREFIX}/include" "-DZLIB_LIBRARY=${ZLIB_PREFIX}/lib/libz.a")
    endif()
  endif()
endmacro()

# Puts the headers of a Debian package into <prefix>/usr/include.
function(blockscope_deb prefix path sha256)
  blockscope_archive(${path} ${sha256} archive)
  file(ARCHIVE_EXTRACT INPUT "${archive}" DESTINATION "${prefix}/package" PATTERNS "data.tar*")
  file(GLOB data "${prefix}/package/data.tar*")
  file(ARCHIVE_EXTRACT INPUT "${data}" DESTINATION "${prefix}" PATTERNS "./usr/include/*")
  file(REMOVE_RECURSE "${prefix}/package")
endfunction()

# The headers of X11, which GLFW is compiled with; the libraries themselves it opens when a window opens. Puts
# the options that GLFW is configured with into X11_OPTIONS.
function(blockscope_x11_headers)
  find_path(X11_HEADERS X11/extensions/Xrandr.h)
  if(X11_HEADERS AND NOT BLOCKSCOPE_LIBRARIES STREQUAL "BUNDLED")
    return()
  endif()
  set(prefix "${BLOCKSCOPE_CACHE}/libraries/x11-headers-1.8.4")
  if(NOT EXISTS "${prefix}/.complete")
    set(packages
    libx/libx11/libx11-dev_1.8.4-2+deb12u2_amd64.deb 8493220d4309af1907a1f2f6eeb204c8103dafcc368394fbc4a0858c28612ff9
    x/xorgproto/x11proto-dev_2022.1-1_all.deb 3cab66a6591774188a568f9b54c4e7956f18da76e0e0fc4a779db5f6bcc3f148
    libx/libxrandr/libxrandr-dev_1.5.2-2+b1_amd64.deb a0048d088226403419d9b0856e2d6d29a4facdd1708b6ceda095d7190f819ff3
    libx/libxinerama/libxinerama-dev_1.1.4-3_amd64.deb 6eef91a823011cfe8a082624deadc30ac9ce886827832fea482603b1fdc0bd25
    libx/libxcursor/libxcursor-dev_1.2.1-1_amd64.deb 9f9eb5d01049b81f13f34d2c54aa474cc649853c752eaa53aba5dcd846d18b1b
    libx/libxi/libxi-dev_1.8-1+b1_amd64.deb 80cd30f783e90a46b0190990d6194dc83d9c24d67a81cc2346f69b8e2ddc9590
    libx/libxext/libxext-dev_1.3.4-1+b1_amd64.deb 591456aba90eeed7a1c1b044d469fd7704bf7d83af9dc574bbe2efc4a2fd1dba
    libx/libxrender/libxrender-dev_0.9.10-1.1_amd64.deb 51be2e92b7bb9a81f8dbcad7a0086a58c779761c17f8aa13893b843bced0ae9b
    libx/libxfixes/libxfixes-dev_6.0.0-2_amd64.deb 75fd16d0f67f5d4eb718d81bfa15d0b2163637293e48f1e24e2c11f9af590dda)
    while(packages)
      list(POP_FRONT packages path sha256)
      blockscope_deb("${prefix}" ${path} ${sha256})
    endwhile()
    file(TOUCH "${prefix}/.complete")
  endif()
  # FindX11 also wants the library, which GLFW does not link.
  set(X11_OPTIONS "-DCMAKE_PREFIX_PATH=${prefix}/usr" "-DX11_X11_LIB=${prefix}/.complete" PARENT_SCOPE)
endfunction()

# A system's Python without its headers (python3-dev): those of the same version from Debian, if Debian has it.
# Everything in them that a module uses is the same for all releases of a version.
function(blockscope_python_headers)
  execute_process(COMMAND "${Python_EXECUTABLE}" -I -c
    "import sys, sysconfig; print(sysconfig.get_path('include')); print('%d.%d' % sys.version_info[:2])"
    OUTPUT_VARIABLE python OUTPUT_STRIP_TRAILING_WHITESPACE)
  string(REPLACE "\n" ";" python "${python}")
  list(GET python 0 include)
  list(GET python 1 version)
  if(EXISTS "${include}/Python.h")
    # Debian's pyconfig.h includes one from a folder where a compiler for another target does not look.
    file(GLOB pyconfig "/usr/include/*-linux-gnu/python${version}/pyconfig.h")
    if(CMAKE_CXX_COMPILER_TARGET AND pyconfig AND include STREQUAL "/usr/include/python${version}")
      set(headers "${CMAKE_BINARY_DIR}/python-headers")
      file(COPY "${include}/" DESTINATION "${headers}")
      file(COPY_FILE "${pyconfig}" "${headers}/pyconfig.h")
      set(Python_INCLUDE_DIR "${headers}" CACHE PATH "Headers of Python" FORCE)
    endif()
    return()
  endif()
  if(version STREQUAL "3.11" AND CMAKE_SYSTEM_PROCESSOR STREQUAL "x86_64")
    set(archive p/python3.11/libpython3.11-dev_3.11.2-6+deb12u8_amd64.deb
      01a8eddeb8505bb6e2c01209cda66b41fb5ebeaa64e69d0e25f7131915f1cd32)
  elseif(version STREQUAL "3.13" AND CMAKE_SYSTEM_PROCESSOR STREQUAL "x86_64")
    set(archive p/python3.13/libpython3.13-dev_3.13.5-2+deb13u5_amd64.deb
      4bd7b17ffbeb367ce1fef8b6ff02536a25f29fc07372d1bdd3ed1e1faa5b9409)
  else()
    message(FATAL_ERROR "Python ${version}: expected its headers in ${include}, found none. HINT: apt-get install "
                        "python3-dev; or use the Python of conda or uv, which have them")
  endif()
  set(headers "${BLOCKSCOPE_CACHE}/libraries/python-headers-${version}/usr/include/python${version}")
  if(NOT EXISTS "${headers}/Python.h")
    blockscope_deb("${BLOCKSCOPE_CACHE}/libraries/python-headers-${version}" ${archive})
    # The system's one is found through a folder of the system.
    file(RENAME "${headers}/../x86_64-linux-gnu/python${version}/pyconfig.h" "${headers}/pyconfig.h")
  endif()
  set(Python_INCLUDE_DIR "${headers}" CACHE PATH "Headers of Python" FORCE)
endfunction()

# blockscope_exports(<target> <symbol>): all else in a module stays inside, such as the HDF5 that is linked into it. A
# process may hold another HDF5, that of h5py.
function(blockscope_exports target symbol)
  set(script "${CMAKE_CURRENT_BINARY_DIR}/${target}.map")
  file(WRITE "${script}" "{ global: ${symbol}; local: *; };\n")
  target_link_options(${target} PRIVATE "LINKER:--version-script,${script}")
endfunction()
