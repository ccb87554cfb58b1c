# Folders of src/ that take part only where what they are built on is found. Sets
#   fsdp_absent_folders          those that do not
#   FSDP_OPTIONAL_LIBRARIES      what those that do are linked to
#   FSDP_OPTIONAL_DEPENDENCIES   how the installed package finds that again
# and defines FSDP_HAVE_<name> for all sources, for a line in the table of transports (launch/transports.c) or in that
# of backends (device/registry.c), and for nothing else. -DCMAKE_DISABLE_FIND_PACKAGE_<package>=ON leaves one out.

set(fsdp_absent_folders)
set(FSDP_OPTIONAL_LIBRARIES)
set(FSDP_OPTIONAL_DEPENDENCIES)

# fsdp_optional(folder name package libraries [components...])
macro(fsdp_optional folder name package libraries)
  if(IS_DIRECTORY ${PROJECT_SOURCE_DIR}/src/${folder})
    find_package(${package} QUIET COMPONENTS ${ARGN})
    if(${package}_FOUND)
      message(STATUS "src/${folder}: with ${package}")
      target_compile_definitions(fsdp_common INTERFACE FSDP_HAVE_${name})
      target_link_libraries(fsdp_common INTERFACE ${libraries})
      list(APPEND FSDP_OPTIONAL_LIBRARIES ${libraries})
      string(APPEND FSDP_OPTIONAL_DEPENDENCIES "find_dependency(${package} COMPONENTS ${ARGN})\n")
    else()
      message(STATUS "src/${folder}: left out, ${package} was not found")
      list(APPEND fsdp_absent_folders ${folder})
    endif()
  endif()
endmacro()

fsdp_optional(comm/nccl NCCL NCCL NCCL::NCCL)
