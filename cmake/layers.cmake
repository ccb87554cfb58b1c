# One OBJECT library a layer, in the order of src/LAYERS, which is also what check_layers.py enforces. A layer without
# sources has none; optional folders are those of optional.cmake. Sets
#   fsdp_layers           the layers, from the bottom up
#   fsdp_objects_<layer>  the layer's objects
#   fsdp_link_<layer>     the layers a program needs that uses this one

set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/LAYERS)
file(STRINGS ${PROJECT_SOURCE_DIR}/src/LAYERS lines REGEX "^[a-z]+:")
set(fsdp_layers)
set(batched)
foreach(line IN LISTS lines)
  string(REGEX MATCH "^([a-z]+):(.*)$" matched "${line}")
  set(layer ${CMAKE_MATCH_1})
  string(REGEX MATCHALL "[a-z]+" uses_${layer} "${CMAKE_MATCH_2}")
  list(APPEND fsdp_layers ${layer})

  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/${layer}/*.c)
  list(FILTER sources EXCLUDE REGEX "^${PROJECT_SOURCE_DIR}/src/(comm/mpi/plugin|backend/cuda)/")  # libraries of their own
  foreach(folder IN LISTS fsdp_absent_folders)
    list(FILTER sources EXCLUDE REGEX "^${PROJECT_SOURCE_DIR}/src/${folder}/")
  endforeach()
  set(sources_${layer} ${sources})
  if(NOT layer MATCHES "^(backend|check)$")  # whose files are known one by one
    list(APPEND batched ${layer})
  endif()
endforeach()
if(FSDP_BATCHES)
  fsdp_batches(12 ${batched})
endif()

foreach(layer IN LISTS fsdp_layers)
  set(uses ${uses_${layer}})
  set(fsdp_objects_${layer})
  if(sources_${layer})
    add_library(fsdp_${layer}_objects OBJECT ${sources_${layer}})
    target_link_libraries(fsdp_${layer}_objects PRIVATE fsdp_common)
    set(fsdp_objects_${layer} $<TARGET_OBJECTS:fsdp_${layer}_objects>)
    # A layer is compiled in half the time if it is not optimised. ThreadSanitizer looks at each access by a call, so that
    # makes tests little slower, but for those that compute, wait or watch all the time.
    if(FSDP_SANITIZE MATCHES "thread" AND NOT layer MATCHES "^(base|device|backend|comm|watch|check)$")
      target_compile_options(fsdp_${layer}_objects PRIVATE -O0 -U_FORTIFY_SOURCE)
    endif()
    # Under AddressSanitizer that pays only for what does little but call the layers below.
    if(FSDP_SANITIZE MATCHES "address" AND layer MATCHES "^(config|draw|hub|adapter|generate|launch|compare|cli)$")
      target_compile_options(fsdp_${layer}_objects PRIVATE -O0 -U_FORTIFY_SOURCE)
    endif()
    if(layer STREQUAL "check")  # for tests alone
      set_target_properties(fsdp_check_objects PROPERTIES EXCLUDE_FROM_ALL ON)
    endif()
  endif()

  # The device's registry lists the backends, and a backend fills the device's tables: one cannot link without the other.
  if(layer STREQUAL "device" OR "device" IN_LIST uses)
    list(APPEND uses device backend)
  endif()
  set(fsdp_link_${layer} ${layer} ${uses})
  foreach(used IN LISTS uses)
    list(APPEND fsdp_link_${layer} ${fsdp_link_${used}})
  endforeach()
  list(REMOVE_DUPLICATES fsdp_link_${layer})
endforeach()

# protoc-c makes C code of the messages in src/format/*.proto.
if(TARGET fsdp_format_objects)
  file(GLOB protos CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/format/*.proto)
  foreach(proto IN LISTS protos)
    get_filename_component(name ${proto} NAME_WE)
    set(made ${PROJECT_BINARY_DIR}/made/format/${name}.pb-c)
    add_custom_command(
      OUTPUT ${made}.c ${made}.h
      COMMAND ${CMAKE_COMMAND} -E make_directory ${PROJECT_BINARY_DIR}/made
      COMMAND ${FSDP_PROTOC} --c_out=${PROJECT_BINARY_DIR}/made --proto_path=${PROJECT_SOURCE_DIR}/src ${proto}
      DEPENDS ${proto}
      COMMENT "Making C code of format/${name}.proto"
      VERBATIM)
    target_sources(fsdp_format_objects PRIVATE ${made}.c ${made}.h)
  endforeach()
  target_include_directories(fsdp_format_objects PRIVATE ${PROJECT_BINARY_DIR}/made)
endif()

# The CPU's kernels are compiled in their own way, once per instruction set.
if(TARGET fsdp_backend_objects)
  include(${PROJECT_SOURCE_DIR}/src/backend/cpu/flags.cmake OPTIONAL)
endif()
