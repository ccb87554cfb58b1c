/* futex.h - sleeps on a word that other ranks, or other threads of this rank, will change. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* Sleeps while *word is `value`, for at most `timeout_ms`. Returns whether all of that time has passed. */
bool fsdp__futex_wait(_Atomic uint32_t *word, uint32_t value, int timeout_ms);
void fsdp__futex_wake_all(_Atomic uint32_t *word);
