# fsdp_batches(OUT name most source...): what to compile in place of these sources: up to `most` as one (batches.py), but
# for those with options of their own.

option(FSDP_BATCHES "compile many files as one, which is faster from nothing, and slower after a change" OFF)
if(FSDP_BATCHES AND CMAKE_C_COMPILER_ID STREQUAL "GNU")
  add_compile_options(-Wno-shadow)  # a function of one file is not in the way of another's parameter, which is called, too
endif()

function(fsdp_batches out name most)
  set(${out} ${ARGN} PARENT_SCOPE)
  set(alone)
  set(together)
  foreach(source IN LISTS ARGN)
    get_source_file_property(options ${source} COMPILE_OPTIONS)
    get_source_file_property(definitions ${source} COMPILE_DEFINITIONS)
    if(options OR definitions)
      list(APPEND alone ${source})
    else()
      list(APPEND together ${source})
    endif()
  endforeach()
  list(LENGTH together count)
  if(count LESS 2)
    return()
  endif()
  execute_process(COMMAND python3 -I -S ${PROJECT_SOURCE_DIR}/cmake/batches.py ${PROJECT_BINARY_DIR}/batches/${name} ${most}
                          ${together}
                  OUTPUT_VARIABLE made OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  string(REPLACE "\n" ";" made "${made}")
  set(${out} ${alone} ${made} PARENT_SCOPE)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${together})  # a new name may need other batches
endfunction()
