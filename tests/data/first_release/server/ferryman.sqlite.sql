BEGIN TRANSACTION;
CREATE TABLE events (
        seq INTEGER PRIMARY KEY AUTOINCREMENT,
        job_id INTEGER NOT NULL REFERENCES jobs (id),
        at INTEGER NOT NULL,
        attempt INTEGER NOT NULL,
        before TEXT,
        state TEXT NOT NULL,
        reason TEXT,
        message TEXT NOT NULL
    ) STRICT
    ;
INSERT INTO "events" VALUES(1,1,1795284340831276,0,NULL,'Queued',NULL,'Job successfully uploaded');
INSERT INTO "events" VALUES(2,1,1795284340833683,1,'Queued','Processing',NULL,'being sent to agent local');
INSERT INTO "events" VALUES(3,1,1795284340848939,1,'Processing','Submitted',NULL,'agent local has it');
INSERT INTO "events" VALUES(4,1,1795284340881958,1,'Submitted','Running',NULL,'run.sh started');
INSERT INTO "events" VALUES(5,1,1795284340897297,1,'Running','Completed',NULL,'run.sh ended well after 0s');
INSERT INTO "events" VALUES(6,2,1795284340914395,0,NULL,'Queued',NULL,'Job successfully uploaded');
INSERT INTO "events" VALUES(7,2,1795284340916827,1,'Queued','Processing',NULL,'being sent to agent local');
INSERT INTO "events" VALUES(8,2,1795284340925855,1,'Processing','Submitted',NULL,'agent local has it');
INSERT INTO "events" VALUES(9,2,1795284340945312,1,'Submitted','Running',NULL,'run.sh started');
INSERT INTO "events" VALUES(10,2,1795284340957658,1,'Running','Failed','exit_code','run.sh ended with exit code 3');
INSERT INTO "events" VALUES(11,3,1795284340968599,0,NULL,'Queued',NULL,'Job successfully uploaded');
INSERT INTO "events" VALUES(12,3,1795284340972814,1,'Queued','Processing',NULL,'being sent to agent local');
INSERT INTO "events" VALUES(13,3,1795284340980612,1,'Processing','Submitted',NULL,'agent local has it');
INSERT INTO "events" VALUES(14,3,1795284340995155,1,'Submitted','Running',NULL,'run.sh started');
INSERT INTO "events" VALUES(15,3,1795284341028400,1,'Running','Cancelled',NULL,'cancelled');
INSERT INTO "events" VALUES(16,4,1795284341036021,0,NULL,'Queued',NULL,'Job successfully uploaded');
INSERT INTO "events" VALUES(17,4,1795284341037968,1,'Queued','Processing',NULL,'being sent to agent local');
INSERT INTO "events" VALUES(18,4,1795284341049195,1,'Processing','Submitted',NULL,'agent local has it');
INSERT INTO "events" VALUES(19,4,1795284341060729,1,'Submitted','Running',NULL,'run.sh started');
INSERT INTO "events" VALUES(20,5,1795284341089562,0,NULL,'Queued',NULL,'Job successfully uploaded');
INSERT INTO "events" VALUES(21,5,1795284341092150,1,'Queued','Processing',NULL,'being sent to agent local');
INSERT INTO "events" VALUES(22,5,1795284341097884,1,'Processing','Submitted',NULL,'agent local has it');
INSERT INTO "events" VALUES(23,5,1795284341112746,1,'Submitted','Running',NULL,'run.sh started');
INSERT INTO "events" VALUES(24,6,1795284341140751,0,NULL,'Queued',NULL,'Job successfully uploaded');
INSERT INTO "events" VALUES(25,7,1795284341144888,0,NULL,'Queued',NULL,'Job successfully uploaded');
CREATE TABLE idempotency_keys (
        user_id TEXT NOT NULL,
        key TEXT NOT NULL,
        job_id INTEGER NOT NULL REFERENCES jobs (id),
        created_at INTEGER NOT NULL,
        PRIMARY KEY (user_id, key)
    ) STRICT, WITHOUT ROWID
    ;
CREATE TABLE job_tags (
        tag TEXT NOT NULL,
        job_id INTEGER NOT NULL REFERENCES jobs (id),
        PRIMARY KEY (tag, job_id)
    ) STRICT, WITHOUT ROWID
    ;
CREATE TABLE jobs (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        state TEXT NOT NULL,
        user_id TEXT NOT NULL,
        service TEXT NOT NULL,
        name TEXT,
        tags TEXT NOT NULL DEFAULT '[]',
        priority INTEGER NOT NULL DEFAULT 0,
        limits TEXT NOT NULL,
        timeout_s REAL NOT NULL,
        attempt INTEGER NOT NULL DEFAULT 0,
        retries_used INTEGER NOT NULL DEFAULT 0,
        infra_used INTEGER NOT NULL DEFAULT 0,
        message TEXT NOT NULL DEFAULT '',
        reason TEXT,
        exit_code INTEGER,
        stderr_tail TEXT NOT NULL DEFAULT '',
        warnings TEXT NOT NULL DEFAULT '[]',
        enforcement TEXT NOT NULL DEFAULT '{}',
        usage TEXT,
        agent TEXT,
        payload_id INTEGER,
        bundle_file TEXT,
        bundle_size INTEGER NOT NULL,
        bundle_digest TEXT NOT NULL,
        result_file TEXT,
        result_size INTEGER,
        result_sha256 TEXT,
        created_at INTEGER NOT NULL,
        queued_at INTEGER NOT NULL,
        submitted_at INTEGER,
        started_at INTEGER,
        ended_at INTEGER,
        not_before INTEGER NOT NULL DEFAULT 0,
        expires_at INTEGER,
        cancel_requested_at INTEGER
    ) STRICT
    ;
INSERT INTO "jobs" VALUES(1,'Completed','1','example',NULL,'[]',0,'{"cpus":1.0,"memory":67108864,"pids":256,"disk":33554432,"log":16777216,"results":2147483648,"network":false}',3600.0,1,0,0,'run.sh ended well after 0s',NULL,0,'','[]','{"memory": "hard", "pids": "hard", "cpu": "hard", "disk": "hard", "wall": "hard", "log": "hard", "results": "hard", "files": "hard", "network": "hard", "isolation": "hard"}','{"wall_s":0.007791,"cpu_s":0.012926,"peak_memory_bytes":1839104}','local',1,'018f523e89fab4edb8e17f1cc0b842ca',150,'1bca8264e03eacddcce75d1490f639664d0eae580baa1ac06072393cdb5e9a02','969bedfdbc91c0ffe9ae5c974aabbcb1',1105,'d6f1db7ebcbcfaa4822a707367242871175fa69be2a2eb9f828594110b56027e',1795284340831276,1795284340831276,1795284340848939,1795284340881958,1795284340897297,0,4948884340897297,NULL);
INSERT INTO "jobs" VALUES(2,'Failed','1','example',NULL,'[]',0,'{"cpus":1.0,"memory":67108864,"pids":256,"disk":33554432,"log":16777216,"results":2147483648,"network":false}',3600.0,1,0,0,'run.sh ended with exit code 3','exit_code',3,'','[]','{"memory": "hard", "pids": "hard", "cpu": "hard", "disk": "hard", "wall": "hard", "log": "hard", "results": "hard", "files": "hard", "network": "hard", "isolation": "hard"}','{"wall_s":0.004925,"cpu_s":0.013329,"peak_memory_bytes":1626112}','local',2,'fbb0cba8f6867caa1006e9c7b9f2cff0',136,'f33f0f5ddc13084be69605afe239a200f7fa3db3e455991edb4f4d08e8de2066','8c5ed03ea7997b91b2eeccfeb7faef98',1013,'0146d2461abc6a26894e0814ff4024e9577d558ff6df423b4acd055b7a858cc7',1795284340914395,1795284340914395,1795284340925855,1795284340945312,1795284340957658,0,4948884340957658,NULL);
INSERT INTO "jobs" VALUES(3,'Cancelled','1','example',NULL,'[]',0,'{"cpus":1.0,"memory":67108864,"pids":256,"disk":33554432,"log":16777216,"results":2147483648,"network":false}',3600.0,1,0,0,'cancelled',NULL,NULL,'','[]','{}',NULL,'local',3,'65630c70b635c0ed67da0e97d587e67a',140,'4a4cd4d619a137388cee4e319684e9ef017e279f845627d3870faadfa83f2cfe','22efd9a112c0c912afaf4b2fe809408d',1012,'4d038cccca031888f5991e763641107c43df931ec42fb643c7552b8243efca17',1795284340968599,1795284340968599,1795284340980612,1795284340995155,1795284341028400,0,4948884341028400,1795284341018925);
INSERT INTO "jobs" VALUES(4,'Running','1','example',NULL,'[]',0,'{"cpus":1.0,"memory":67108864,"pids":256,"disk":33554432,"log":16777216,"results":2147483648,"network":false}',3600.0,1,0,0,'run.sh started',NULL,NULL,'','[]','{}',NULL,'local',4,'1f7ec84fc255a534194f88bd05e1c766',202,'c70dbf0ae262007e3267e456a2561e67d464800ab3804afacfba881c0b58d45b',NULL,NULL,NULL,1795284341036021,1795284341036021,1795284341049195,1795284341060729,NULL,0,NULL,NULL);
INSERT INTO "jobs" VALUES(5,'Running','1','example',NULL,'[]',0,'{"cpus":1.0,"memory":67108864,"pids":256,"disk":33554432,"log":16777216,"results":2147483648,"network":false}',3600.0,1,0,0,'run.sh started',NULL,NULL,'','[]','{}',NULL,'local',5,'deaf0e99429ffb5f53e79b74d78db735',163,'35ac52d31b4a964beb1002df74ae30d2847eb17920c02817d0b328ef02ded4a2',NULL,NULL,NULL,1795284341089562,1795284341089562,1795284341097884,1795284341112746,NULL,0,NULL,NULL);
INSERT INTO "jobs" VALUES(6,'Queued','1','example',NULL,'[]',0,'{"cpus":1.0,"memory":67108864,"pids":256,"disk":33554432,"log":16777216,"results":2147483648,"network":false}',3600.0,0,0,0,'Job successfully uploaded',NULL,NULL,'','[]','{}',NULL,NULL,NULL,'d49c210afa789c13ddf89971f848a011',151,'81061fe99885400d6ed4e708a7856ad54d66d75f3767328f704c48ad2d08d3a8',NULL,NULL,NULL,1795284341140751,1795284341140751,NULL,NULL,NULL,0,NULL,NULL);
INSERT INTO "jobs" VALUES(7,'Queued','1','example',NULL,'[]',0,'{"cpus":1.0,"memory":67108864,"pids":256,"disk":33554432,"log":16777216,"results":2147483648,"network":false}',3600.0,0,0,0,'Job successfully uploaded',NULL,NULL,'','[]','{}',NULL,NULL,NULL,'ae4feab7b58cdcc0057c020fb44f0786',151,'81061fe99885400d6ed4e708a7856ad54d66d75f3767328f704c48ad2d08d3a8',NULL,NULL,NULL,1795284341144888,1795284341144888,NULL,NULL,NULL,0,NULL,NULL);
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT
    ;
INSERT INTO "meta" VALUES('server','ff5ce0eaf5055ffe13813956e2a2579e');
CREATE TABLE schema_version (version INTEGER NOT NULL) STRICT;
INSERT INTO "schema_version" VALUES(1);
CREATE INDEX jobs_queued ON jobs (service, user_id, id) WHERE state = 'Queued';
CREATE INDEX jobs_queued_by_age ON jobs (service, queued_at) WHERE state = 'Queued';
CREATE INDEX jobs_held ON jobs (state, agent, service, user_id)
        WHERE state IN ('Processing', 'Submitted', 'Running', 'Unknown')
    ;
CREATE INDEX jobs_expiring ON jobs (expires_at) WHERE expires_at IS NOT NULL;
CREATE INDEX jobs_to_cancel ON jobs (id)
        WHERE cancel_requested_at IS NOT NULL AND ended_at IS NULL
    ;
CREATE INDEX jobs_bundles ON jobs (bundle_file) WHERE bundle_file IS NOT NULL;
CREATE INDEX jobs_results ON jobs (result_file) WHERE result_file IS NOT NULL;
CREATE INDEX jobs_of_user ON jobs (user_id, id);
CREATE INDEX events_of_job ON events (job_id, seq);
CREATE INDEX idempotency_keys_by_age ON idempotency_keys (created_at);
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('jobs',7);
INSERT INTO "sqlite_sequence" VALUES('events',25);
COMMIT;
