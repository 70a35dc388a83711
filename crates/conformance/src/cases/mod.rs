//! The table of everything that must be true.

mod apps;
mod apps_changes;
mod apps_failures;
mod apps_repairs;
mod budget;
mod canary;
mod claims;
mod fixture;
mod gate;
mod images;
mod isolation;
mod lists;
mod logs;
mod packets;
mod plans;
mod plans_adopt;
mod plans_data;
mod plans_images;
mod plans_real;
mod pods;
mod port;
mod preview;
mod refusals;
mod rights;
mod verdict;
mod view;
mod watches;

use pando_cluster::env::BoxFuture;

use crate::bed::{Bed, Need};

/// One thing that must be true.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// Its name, a fact: `port::a_name_is_taken_once`.
    pub name: &'static str,
    /// What it asks of a bed.
    pub needs: &'static [Need],
    /// When it runs.
    pub profile: Profile,
    /// Proves it, or panics with what was different.
    pub run: for<'a> fn(&'a dyn Bed) -> BoxFuture<'a, ()>,
}

/// How much is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Profile {
    /// What every change must pass.
    Ci,
    /// Also what takes long on a real cluster.
    Full,
}

/// Lists cases of a module, each by the name of its function and what it needs.
macro_rules! cases {
    ($($module:ident { $($name:ident $([$($need:ident)+])? $($profile:ident)?;)+ })+) => {
        &[$($(Case {
            name: concat!(stringify!($module), "::", stringify!($name)),
            needs: &[$($(Need::$need),+)?],
            profile: cases!(@profile $($profile)?),
            run: |bed| Box::pin($module::$name(bed)),
        },)+)+]
    };
    (@profile) => { Profile::Ci };
    (@profile full) => { Profile::Full };
}

/// Every case, by module. On a bed where time costs nothing both profiles run.
pub const CASES: &[Case] = cases! {
    port {
        what_was_created_is_what_is_read;
        what_is_not_there_is_none;
        a_name_is_taken_once;
        a_name_is_taken_while_its_holder_is_being_deleted;
        a_namespace_that_is_not_there_takes_nothing;
        a_namespace_that_is_being_deleted_takes_nothing_new;
        a_namespace_takes_everything_in_it_along;
        a_patch_for_an_old_version_changes_nothing;
        a_patch_of_what_is_gone_finds_nothing;
        a_null_removes_a_member_and_the_rest_stays;
        a_patch_that_changes_nothing_leaves_the_version;
        of_two_writers_at_one_version_one_wins;
        another_object_of_the_name_is_not_deleted;
        an_object_at_a_newer_version_is_not_deleted;
        what_was_deleted_is_gone_and_its_name_free;
    }
    lists {
        pages_hold_every_object_once_in_order;
        all_pages_are_of_one_version;
        a_list_of_nothing_is_empty;
        labels_choose;
        a_name_chooses;
        a_list_of_everything_spans_namespaces;
    }
    watches {
        a_watch_from_a_list_misses_nothing;
        only_what_is_asked_for_is_told;
        an_object_that_loses_its_labels_is_told_as_gone;
        a_version_that_is_no_longer_kept_has_expired [Clock];
        a_watch_ends_in_its_time;
        a_quiet_watch_is_told_that_nothing_happened [Clock];
    }
    refusals {
        a_bad_name_is_refused_by_its_field;
        the_role_of_a_binding_cannot_be_changed;
        a_headless_service_does_not_become_a_node_port;
        a_pod_without_its_account_is_refused;
        a_quota_of_none_refuses_a_node_port;
        a_quota_of_memory_wants_limits;
        a_full_quota_takes_no_more;
        the_baseline_refuses_a_privileged_pod;
        a_running_spec_is_not_changed;
        a_gate_is_only_ever_opened;
    }
    rights {
        what_no_role_allows_is_forbidden_by_name;
        a_binding_gives_rights_in_its_namespace_only;
        only_the_role_for_apps_can_be_bound;
        the_addresses_of_the_api_server_can_be_read;
    }
    pods {
        a_gated_pod_does_not_run [Kubelet];
        a_gated_pod_goes_at_once;
        an_opened_gate_lets_the_pod_run [Kubelet];
        a_failed_pod_stays_failed [Kubelet];
        an_ended_pod_goes_at_once [Kubelet];
        a_pod_stays_until_its_containers_have_ended [Kubelet];
        a_second_deletion_may_only_hasten [Kubelet];
        an_image_that_cannot_be_had_is_told [Kubelet];
        a_log_is_what_was_printed_in_order [Kubelet];
        only_the_last_lines_of_a_log_when_asked [Kubelet];
        a_followed_log_ends_with_its_container [Kubelet];
    }
    images {
        a_file_that_cannot_be_mounted_is_told_by_an_event_alone [Kubelet];
        files_of_a_map_are_where_their_mounts_say_with_their_modes [Kubelet];
        an_environment_that_is_not_there_holds_the_container [Kubelet];
        an_image_that_must_not_be_pulled_is_not [Kubelet];
        a_command_that_is_not_there_fails_after_the_image_is [Kubelet];
        a_pull_secret_that_is_not_there_is_told_and_stops_nothing [Kubelet];
        a_private_image_needs_its_password [Kubelet Memory];
    }
    claims {
        a_claim_without_a_class_gets_the_default_one_and_waits_for_a_pod [Kubelet];
        a_claims_first_pod_gets_it_a_volume [Kubelet];
        two_pods_of_one_node_have_one_claim_at_once [Kubelet];
        a_pod_is_not_placed_away_from_its_volume [Kubelet TwoNodes];
        a_pod_without_its_claim_is_not_placed [Kubelet];
        a_claim_that_an_ended_pod_has_stays_until_that_pod_goes [Kubelet];
        a_retained_volume_is_given_to_one_claim_and_to_no_other [Kubelet];
        a_claim_grows_only_where_its_class_allows [Kubelet];
        a_bound_volume_that_is_deleted_goes_with_its_claim [Kubelet];
    }
    packets {
        without_a_policy_everybody_reaches_a_listener [Kubelet Packets];
        a_headless_service_gives_its_pod_a_name [Kubelet Packets];
        a_policy_closes_what_it_selects [Kubelet Packets];
        a_policy_opens_to_those_it_names_and_nobody_else [Kubelet Packets];
        a_program_tells_what_it_dialled [Kubelet Packets];
        a_program_that_waits_to_be_closed_in_goes_on_then [Kubelet Packets];
    }
    apps {
        a_new_app_gets_all_it_stands_on_before_its_pod [Kubelet];
        a_running_app_is_observed_with_its_image_and_its_start [Kubelet];
        what_never_was_is_nothing_to_observe_stop_or_destroy;
        its_service_is_headless_and_selects_exactly_its_pod [Kubelet];
        the_environment_reaches_the_app_as_it_was_written [Kubelet];
        the_environment_is_in_its_secret_and_nowhere_else [Kubelet];
        a_satisfied_plan_is_not_written_again [Kubelet Audit];
        a_plan_that_is_wrong_writes_nothing [Audit];
        a_start_tells_what_it_waits_for [Kubelet];
        health_has_no_verdict_until_its_time_and_stops_nothing [Kubelet];
    }
    apps_changes {
        a_changed_plan_replaces_the_pod_when_the_old_one_is_gone [Kubelet];
        two_callers_at_once_start_one_pod [Kubelet];
        a_stopped_app_is_there_and_does_not_run [Kubelet];
        what_is_stopped_while_it_starts_does_not_start_later [Kubelet];
        an_app_that_ends_at_once_has_ended_with_its_code [Kubelet];
        an_ended_pod_leaves_the_endpoints_when_it_is_met [Kubelet];
        a_renamed_workload_leaves_nothing_of_the_old_name [Kubelet];
        a_destroyed_app_is_gone_with_its_namespace [Kubelet];
        data_stays_when_its_app_is_destroyed [Kubelet];
        a_namespace_that_is_going_is_waited_for [Kubelet];
        a_namespace_that_does_not_go_is_an_error_with_its_cause [Kubelet Clock];
        a_namespace_that_is_not_the_apps_is_refused_and_untouched [Audit];
    }
    preview {
        what_is_told_of_a_new_app_is_what_is_made [Kubelet Audit];
        what_is_told_of_a_change_is_what_is_done [Kubelet Audit];
        what_is_told_of_a_stopped_app_is_what_is_done [Kubelet Audit];
        what_is_told_of_a_workload_that_left_is_what_is_done [Kubelet Audit];
        what_was_changed_by_hand_is_told_with_both_values [Kubelet Audit];
        what_an_apply_would_refuse_is_refused_beforehand;
    }
    apps_repairs {
        what_was_changed_by_hand_is_repaired_and_told [Kubelet];
        a_role_binding_to_another_role_is_replaced [Kubelet];
        a_strangers_policy_is_told_and_left_alone [Kubelet];
        what_was_deleted_by_hand_is_told_and_made_again [Kubelet];
        a_lost_environment_is_made_again_and_the_app_runs_on [Kubelet];
        a_lost_record_is_made_again_with_a_number_never_used [Kubelet];
        a_record_of_another_type_is_made_again [Kubelet];
        a_strangers_service_of_the_workloads_name_is_refused_and_untouched [Kubelet];
    }
    apps_failures {
        an_image_that_cannot_be_had_is_told_by_its_name [Kubelet];
        a_registry_that_limits_pulls_is_told_as_that [Memory];
        a_registry_that_comes_back_in_time_is_waited_for [Memory];
        what_no_node_has_room_for_is_told_in_the_schedulers_words [Kubelet];
        a_program_that_is_not_there_is_told_without_the_runtimes_words [Kubelet];
        a_container_that_cannot_be_configured_is_told_with_its_cause [Kubelet Packets];
        an_app_that_takes_too_much_memory_was_killed_for_it [Kubelet];
        memory_is_named_where_the_node_noticed_it [Memory];
        a_lost_node_is_told_and_its_app_does_not_count_as_running [Memory];
        a_caller_waits_no_longer_than_it_said [Memory];
        a_start_that_fails_leaves_the_rest_of_its_app_alone [Kubelet];
        a_crash_is_an_outcome_with_its_code_and_its_last_words [Kubelet];
        a_file_that_is_gone_is_told_by_what_only_events_say [Kubelet] full;
        a_node_that_comes_back_has_its_app_once [Memory];
        an_evicted_app_is_told_as_that_and_comes_back_by_an_apply [Kubelet] full;
    }
    plans {
        a_web_server_starts_after_its_database_and_finds_it_by_name [Kubelet Packets];
        a_dependency_that_never_becomes_ready_is_named [Kubelet] full;
        who_depends_on_a_failed_one_is_skipped_and_the_others_are_up [Kubelet];
        of_several_failures_the_first_of_the_plan_is_told [Kubelet];
        what_leaves_a_plan_goes_and_its_data_stays [Kubelet];
        only_the_workload_that_was_changed_is_replaced [Kubelet];
        a_satisfied_plan_of_many_parts_is_not_written_in_whatever_order [Kubelet Audit];
        a_pod_whose_labels_were_taken_off_is_found_and_labelled_again [Kubelet];
        a_pod_whose_labels_were_taken_off_is_replaced_by_one_and_not_joined [Kubelet];
        a_pod_whose_labels_were_taken_off_is_ended_with_its_app [Kubelet];
        an_apply_ends_at_its_deadline_with_what_it_waited_for [Kubelet];
        an_apply_without_time_left_ends_nothing_that_runs [Memory];
        a_call_whose_turn_does_not_come_in_time_says_so [Kubelet];
    }
    plans_data {
        data_stays_over_a_replacement_a_stop_and_a_destruction [Kubelet];
        a_volume_is_kept_also_where_its_app_did_not_start [Kubelet];
        a_volume_that_is_no_longer_kept_is_kept_again [Kubelet];
        a_carried_file_is_where_and_how_the_plan_says_beside_the_images_own [Kubelet];
        what_a_workload_is_given_is_its_own_and_in_no_other_place [Kubelet];
        a_volume_that_nobody_mounts_yet_is_there_and_bound_by_its_first_user [Kubelet];
        a_claim_that_a_stranger_made_is_not_taken_for_a_volume [Kubelet];
        a_program_that_does_not_end_is_not_joined_on_its_volume [Kubelet];
    }
    plans_images {
        an_image_that_cannot_be_had_leaves_the_version_before_it_serving [Kubelet];
        a_new_image_is_had_before_the_version_before_it_is_ended [Kubelet];
        where_there_is_no_room_to_pull_ahead_the_apply_goes_on [Memory];
        a_pull_that_a_dead_caller_left_behind_goes_with_the_next_apply [Memory];
        a_private_image_is_pulled_with_the_plans_credential_only [Memory];
        an_image_that_one_may_not_have_is_told_in_time [Memory];
    }
    plans_real {
        the_blog_of_the_examples_keeps_what_was_written_to_its_database [Kubelet AppImage DbImage] full;
        a_command_line_that_is_killed_at_any_moment_leaves_what_the_next_apply_ends [Kubelet Program] full;
    }
    plans_adopt {
        an_app_of_the_adapter_before_is_adopted_as_it_runs [Kubelet];
        an_adopted_app_is_replaced_stopped_and_started_as_any_other [Kubelet];
        a_pod_that_is_not_as_planned_is_replaced_and_not_adopted [Kubelet];
        a_pod_of_the_adapter_before_that_has_ended_or_is_doubled_is_not_adopted [Kubelet];
    }
    logs {
        the_newest_start_is_read [Kubelet];
        a_crash_log_is_read_after_the_end [Kubelet];
        bytes_are_passed_on_as_they_are [Kubelet];
        since_is_exact [Kubelet];
        only_the_last_lines_where_asked [Kubelet];
        a_followed_tail_goes_on_with_what_comes [Kubelet];
        a_followed_log_goes_on_with_the_next_start [Kubelet];
        a_followed_log_ends_when_the_workload_is_stopped [Kubelet];
        a_followed_log_ends_when_the_app_is_taken_away [Kubelet];
        a_followed_log_waits_for_a_start_on_its_way [Kubelet];
        what_is_not_there_has_no_log [Kubelet];
        a_log_that_is_cut_anywhere_is_read_once_and_in_order [Kubelet];
        a_log_that_falls_silent_is_asked_for_again [Kubelet];
        a_node_that_cannot_follow_is_asked_again_and_again [Kubelet];
        a_nodes_words_are_no_output [Kubelet];
        a_log_that_goes_before_its_pod_has_ended [Memory];
        a_slow_reader_is_told_what_it_lost [Memory] full;
        a_rotation_in_a_cut_is_told_as_a_gap [Memory];
        a_late_reader_is_told_what_it_lost [Kubelet] full;
        a_hundred_thousand_lines_over_rotations_and_cuts [Kubelet] full;
    }
    view {
        a_warm_process_observes_without_a_call [Kubelet];
        what_this_process_did_is_seen_at_once [Kubelet];
        a_broken_watch_is_read_around [Kubelet] full;
        a_silent_watch_is_believed_for_its_time_only [Kubelet Clock];
        a_version_that_has_expired_is_listed_anew [Kubelet Clock];
        an_ended_pod_leaves_the_endpoints_by_itself [Kubelet];
        a_pod_that_lost_its_workloads_label_is_its_workloads_all_the_same [Kubelet];
        a_policy_that_was_opened_is_told [Kubelet];
        what_is_on_its_way_is_told_from_what_was_stopped [Kubelet];
        a_strangers_namespace_is_no_absent_one;
    }
    isolation {
        only_pandos_server_and_the_apps_own_pods_reach_an_app [Kubelet Packets AppImage];
        an_app_reaches_the_outside_and_nothing_of_the_cluster [Kubelet Packets Outside TwoNodes];
        nobody_answers_for_a_stopped_app [Kubelet Packets];
    }
    gate {
        eight_fresh_pods_reach_nobody_from_their_first_instruction [Kubelet Packets];
        forty_fresh_pods_reach_nobody_from_their_first_instruction [Kubelet Packets] full;
        a_gate_that_never_closes_is_an_error_with_its_node [Kubelet Packets];
        a_gate_whose_probe_cannot_run_is_not_passed [Kubelet Packets AppImage];
        a_gate_passes_as_whatever_user_the_app_runs [Kubelet Packets];
    }
    canary {
        a_closed_network_is_found_with_its_families_and_nodes [Kubelet Packets];
        a_network_that_leaves_anything_open_is_told_with_it [Memory];
        a_network_that_closes_late_passes_with_the_time_it_took [Memory];
        a_helper_image_that_cannot_be_had_is_told [Kubelet];
        a_helper_image_without_the_tools_is_told_with_what_it_lacks [Kubelet AppImage];
        a_check_that_nobody_waits_for_takes_away_what_it_made [Memory];
        what_a_dead_process_left_is_swept_and_nothing_else [Clock];
    }
    verdict {
        a_pass_is_found_out_once_and_used_by_every_process [Memory];
        no_app_is_started_where_policies_are_not_enforced [Memory];
        a_pass_is_overthrown_by_two_runs_and_not_by_one [Memory];
        a_pass_stands_for_its_time_where_nothing_can_be_found_out [Memory];
        a_pass_that_ages_is_renewed_by_a_health_check [Kubelet Packets];
        those_who_ask_at_once_wait_for_one_canary [Memory];
        who_takes_the_verdict_away_has_it_found_out_anew [Memory];
        a_doctor_finds_nothing_wrong_with_a_bed [Kubelet Packets];
    }
    budget {
        a_first_apply_of_a_fresh_process [Memory];
        a_first_apply_of_a_warm_process [Memory];
        a_pull_credential_costs_one_call [Memory];
        a_satisfied_plan_with_everything_costs_six_reads [Memory];
        an_apply_of_a_satisfied_plan [Memory];
        an_observation [Memory];
        an_upstream_costs_no_call [Memory];
    }
};

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_case_has_a_name_of_its_own() {
        let names: BTreeSet<_> = CASES.iter().map(|case| case.name).collect();
        assert_eq!(names.len(), CASES.len());
    }
}
